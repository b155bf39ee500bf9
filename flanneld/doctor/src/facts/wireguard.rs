//! Facts about WireGuard peers and their sessions.

use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use types::Subnets;

/// Facts about WireGuard on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wireguard {
    /// The number of WireGuard peers of this node.
    pub peers: usize,
    /// The peers that complete no handshake, although this node sends packets to these peers.
    pub silent: Vec<Silent>,
    /// Whether the program `wg` is installed.
    pub has_tool: bool,
}

/// A WireGuard peer that completes no handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The peer's WireGuard public key, in base64.
    pub key: String,
    /// The name of the WireGuard device.
    pub device: String,
    /// The UDP port on which this node's WireGuard device listens.
    pub port: Option<u16>,
    /// The UDP endpoint to which this node sends packets for the peer.
    pub endpoint: Option<SocketAddr>,
    /// Seconds since the last complete handshake with the peer; `None` without a complete handshake.
    pub handshake: Option<u64>,
    /// Seconds since this node began to send packets to the peer without a complete handshake.
    pub silence: u64,
    /// Whether handshakes that the peer initiates arrive at this node.
    pub initiates: bool,
    /// The node to which the key belongs; `None` if no lease in use has the key.
    pub holder: Option<Holder>,
}

impl Silent {
    /// Returns the subnets of the node to which the key belongs.
    pub(crate) fn subnets(&self) -> impl Iterator<Item = IpNet> {
        self.holder.iter().flat_map(|holder| holder.subnets.nets())
    }
}

/// The node to which a WireGuard key belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The node's name from its lease; untrusted text.
    pub name: String,
    /// The node's subnets, one for each address family.
    pub subnets: Subnets,
    /// The addresses that the node's lease publishes.
    pub public: Vec<IpAddr>,
}
