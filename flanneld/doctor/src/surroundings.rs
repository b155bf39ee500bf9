//! Where the packets of other nodes come from.

use crate::fits::Fits;
use ipnet::IpNet;
use std::net::IpAddr;

/// Where flannel's packets come from, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The interface for packets between nodes.
    pub underlay: Option<String>,
    /// The addresses of the other nodes.
    pub peers: Vec<IpAddr>,
    /// The networks of the underlay's addresses: where other nodes may be as long as none is known.
    pub near: Vec<IpNet>,
}

impl Surroundings {
    /// Whether packets of other nodes come from a network.
    pub fn comes_from(&self, net: &IpNet, ipv6: bool) -> Fits {
        let peers: Vec<IpNet> = self.peers.iter().filter(|peer| peer.is_ipv6() == ipv6).map(|peer| IpNet::from(*peer)).collect();
        let near: Vec<IpNet> = self.near.iter().filter(|near| near.addr().is_ipv6() == ipv6).copied().collect();
        let places = if peers.is_empty() { near } else { peers };
        match places.as_slice() {
            [] => Fits::Perhaps,
            all if all.iter().all(|place| net.contains(place)) => Fits::Yes,
            all if !all.iter().any(|place| subnet_lease::nets_overlap(net, place)) => Fits::No,
            _ => Fits::Perhaps,
        }
    }
}
