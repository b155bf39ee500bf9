//! The peers of WireGuard, by their sessions.

use std::net::{IpAddr, SocketAddr};
use types::Subnets;

/// WireGuard on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wireguard {
    /// The number of its peers.
    pub peers: usize,
    /// Those that are sent to, and complete no handshake.
    pub silent: Vec<Silent>,
    /// How far the clock of this node is behind what it was since the daemon started, in seconds.
    pub clock_behind: Option<u64>,
    /// Whether the program `wg` is there.
    pub has_tool: bool,
}

/// A peer that completes no handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Its public key, in base64.
    pub key: String,
    /// The name of the device.
    pub device: String,
    /// The UDP port on which that device listens.
    pub port: Option<u16>,
    /// Where packets to it are sent.
    pub endpoint: Option<SocketAddr>,
    /// How many seconds ago the last handshake was completed; `None` if none ever was.
    pub handshake: Option<u64>,
    /// For how many seconds it has been sent to in vain.
    pub silence: u64,
    /// Whether its own handshakes arrive here.
    pub initiates: bool,
    /// The node with this key; `None` if no lease in force names it.
    pub holder: Option<Holder>,
}

/// The node that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name in its lease; foreign text.
    pub name: String,
    /// Its subnets, one a family.
    pub subnets: Subnets,
    /// The addresses that it publishes.
    pub public: Vec<IpAddr>,
}
