//! Forwarding entries of the userspace datapath, from which a packet engine builds its own lookup
//! table.

use crate::names::{LinkName, Mac};
use ipnet::IpNet;
use std::net::SocketAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The packet engine's TUN device.
    pub device: LinkName,
    /// In bytes.
    pub mtu: u32,
    /// Each peer's subnet and next hop.
    pub peers: Vec<(IpNet, NextHop)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The destination of this node's datagrams and the source of the peer's.
    pub address: SocketAddr,
    /// The VTEP's, if the encapsulation uses a MAC.
    pub mac: Option<Mac>,
    /// Whether the peer accepts encapsulated IPv6 packets.
    pub carries_v6: bool,
    /// Whether the peer honours the outer ECN field (RFC 6040 normal mode).
    pub outer_ecn: bool,
}
