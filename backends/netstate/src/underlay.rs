//! The underlay: the interface over which nodes reach each other.

use ipnet::IpNet;
use std::net::IpAddr;
use types::{Addresses, Family};

/// The interface that carries packets between nodes, with its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// The interface index, which identifies the interface while the daemon runs.
    pub index: u32,
    /// The current name of the interface.
    pub name: String,
    /// The interface's MTU in bytes.
    pub mtu: u32,
    /// The interface's own addresses, at most one for each family. Sockets bind to the interface's own addresses,
    /// and tunnel devices use these addresses as local addresses.
    pub addresses: Addresses,
    /// The addresses that the node announces to peers: from `--public-ip` and `--public-ipv6`, or otherwise the interface's own addresses.
    pub public: Addresses,
    /// All addresses of this host, on any interface. A public address outside of this list is not local.
    pub local: Vec<IpNet>,
    /// The networks that the interface reaches without a gateway, according to the routes of the main table.
    /// The list is empty if flanneld did not read the routes of the main table.
    pub links: Vec<IpNet>,
}

impl Underlay {
    /// Returns the local address of tunnels of a family: the public address if this host has it, or otherwise the interface's address.
    pub fn tunnel_source(&self, family: Family) -> Option<IpAddr> {
        let own = self.addresses.of(family);
        let is_local = |public: &IpAddr| {
            Some(*public) == own || self.local.iter().any(|net| net.addr() == *public)
        };
        self.public.of(family).filter(is_local).or(own)
    }
}
