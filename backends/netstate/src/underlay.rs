//! The underlay: the interface over which nodes reach each other.

use ipnet::IpNet;
use std::net::IpAddr;
use subnet_lease::Addresses;

/// The interface that carries packets between nodes, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Interface index; what identifies it while the daemon runs.
    pub index: u32,
    /// Its present name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The interface's own addresses, one a family at most: what sockets bind and devices use as local address.
    pub addresses: Addresses,
    /// What peers are told: `--public-ip` and kin, else the interface's addresses.
    pub public: Addresses,
    /// Every address of this host, on whatever interface: a public address that is not among them is not local.
    pub local: Vec<IpNet>,
}

impl Underlay {
    /// The local end of tunnels of a family: the public address where this host has it, else the interface's.
    pub fn tunnel_source(&self, ipv6: bool) -> Option<IpAddr> {
        let (public, own) = if ipv6 {
            (self.public.v6().copied().map(IpAddr::V6), self.addresses.v6().copied().map(IpAddr::V6))
        } else {
            (self.public.v4().copied().map(IpAddr::V4), self.addresses.v4().copied().map(IpAddr::V4))
        };
        match public {
            Some(public) if Some(public) == own || self.local.iter().any(|net| net.addr() == public) => Some(public),
            _ => own,
        }
    }
}
