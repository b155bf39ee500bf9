//! Senders and interfaces of flannel's packets.

use ipnet::IpNet;
use std::net::IpAddr;

/// The known senders and interfaces of flannel's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The interface for packets between nodes.
    pub underlay: Option<String>,
    /// The bridge of this node's pods; `None` while the bridge does not exist.
    pub bridge: Option<String>,
    /// The underlay addresses of the other nodes.
    pub peers: Vec<IpAddr>,
    /// The networks of this node's underlay addresses. While no peer is known, the doctor assumes that the peers are in the underlay's networks.
    pub near: Vec<IpNet>,
}
