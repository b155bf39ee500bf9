//! Facts about WireGuard peers and their sessions.

use std::net::{IpAddr, SocketAddr};
use types::Subnets;

/// Facts about WireGuard on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wireguard {
    /// The number of this node's WireGuard peers.
    pub peers: usize,
    /// The peers that complete no handshake although this node sends packets to them.
    pub silent: Vec<Silent>,
    /// The number of seconds by which this node's clock was set back since the daemon started.
    pub clock_behind: Option<u64>,
    /// Whether the program `wg` is installed.
    pub has_tool: bool,
}

/// A peer that completes no handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The peer's public key, in base64.
    pub key: String,
    /// The name of the device.
    pub device: String,
    /// The UDP port on which the device listens.
    pub port: Option<u16>,
    /// The address to which this node sends packets for the peer.
    pub endpoint: Option<SocketAddr>,
    /// Seconds since the last completed handshake; `None` without a completed handshake.
    pub handshake: Option<u64>,
    /// Seconds since this node began to send to the peer without a completed handshake.
    pub silence: u64,
    /// Whether handshakes that the peer initiates arrive at this node.
    pub initiates: bool,
    /// The node with this key; `None` if no lease in use has the key.
    pub holder: Option<Holder>,
}

/// The node to which a key belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name in the node's lease; untrusted text.
    pub name: String,
    /// The node's subnets, one for each family.
    pub subnets: Subnets,
    /// The addresses that the node publishes.
    pub public: Vec<IpAddr>,
}
