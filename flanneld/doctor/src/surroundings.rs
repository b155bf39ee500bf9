//! Where the packets of other nodes come from.

use ipnet::IpNet;
use std::net::IpAddr;

/// Where flannel's packets come from, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The interface for packets between nodes.
    pub underlay: Option<String>,
    /// The bridge of this node's pods; `None` as long as there is none.
    pub bridge: Option<String>,
    /// The addresses of the other nodes.
    pub peers: Vec<IpAddr>,
    /// The networks of the underlay's addresses, where other nodes may be as long as none is known.
    pub near: Vec<IpNet>,
}
