//! Senders and interfaces of flannel's packets.

use ipnet::IpNet;
use std::net::IpAddr;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Carries packets between nodes.
    pub underlay: Option<String>,
    /// `None` while the pods' bridge does not exist.
    pub bridge: Option<String>,
    /// The underlay addresses of the other nodes.
    pub peers: Vec<IpAddr>,
    /// The networks of this node's underlay addresses. While no peer is known, the doctor assumes that the peers are there.
    pub near: Vec<IpNet>,
}
