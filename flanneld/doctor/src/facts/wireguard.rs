//! Facts about WireGuard peers and their sessions.

use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use types::Subnets;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wireguard {
    pub peers: usize,
    /// Peers that complete no handshake, although this node sends them packets.
    pub silent: Vec<Silent>,
    /// The program `wg` is installed.
    pub has_tool: bool,
}

/// A WireGuard peer that completes no handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Public, in base64.
    pub key: String,
    pub device: String,
    /// The UDP port on which this node's device listens.
    pub port: Option<u16>,
    /// Where this node sends packets for the peer.
    pub endpoint: Option<SocketAddr>,
    /// Seconds since the last complete handshake; `None` without one.
    pub handshake: Option<u64>,
    /// Seconds since this node began to send packets without a complete handshake.
    pub silence: u64,
    /// Handshakes that the peer initiates arrive at this node.
    pub initiates: bool,
    /// `None` if no lease in use has the key.
    pub holder: Option<Holder>,
}

impl Silent {
    /// Those of the holder.
    pub(crate) fn subnets(&self) -> impl Iterator<Item = IpNet> {
        self.holder.iter().flat_map(|holder| holder.subnets.nets())
    }
}

/// The node to which a WireGuard key belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// From its lease; untrusted text.
    pub name: String,
    pub subnets: Subnets,
    /// As its lease publishes them.
    pub public: Vec<IpAddr>,
}
