//! Senders and interfaces of flannel's packets.

use ipnet::IpNet;
use std::net::IpAddr;

/// Senders and interfaces of flannel's packets, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The interface for packets between nodes.
    pub underlay: Option<String>,
    /// The bridge of this node's pods; `None` as long as there is none.
    pub bridge: Option<String>,
    /// The addresses of the other nodes.
    pub peers: Vec<IpAddr>,
    /// The networks of the underlay's addresses. The peers are assumed to be there while no peer is known.
    pub near: Vec<IpNet>,
}
