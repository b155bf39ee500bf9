//! The underlay: the interface over which nodes reach each other.

use ipnet::IpNet;
use std::net::IpAddr;
use types::{Addresses, Family};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Identifies the interface while the daemon runs.
    pub index: u32,
    /// The current name, which may change.
    pub name: String,
    /// In bytes.
    pub mtu: u32,
    /// At most one for each family. Sockets bind to them, and tunnel devices use them as local
    /// addresses.
    pub addresses: Addresses,
    /// What the node announces to peers: `--public-ip` and `--public-ipv6`, or otherwise
    /// `addresses`.
    pub public: Addresses,
    /// All addresses of this host, on any interface. A public address outside of this list is not
    /// local.
    pub local: Vec<IpNet>,
    /// The networks that the interface reaches without a gateway, according to the main table;
    /// empty if flanneld did not read it.
    pub links: Vec<IpNet>,
}

impl Underlay {
    /// The public address if this host has it, or otherwise the interface's.
    #[must_use]
    pub fn tunnel_source(&self, family: Family) -> Option<IpAddr> {
        let own = self.addresses.of(family);
        let is_local = |public: &IpAddr| {
            Some(*public) == own || self.local.iter().any(|net| net.addr() == *public)
        };
        self.public.of(family).filter(is_local).or(own)
    }
}
