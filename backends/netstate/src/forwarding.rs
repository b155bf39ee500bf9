//! Forwarding entries of the userspace datapath. A packet engine builds its own lookup table from the forwarding entries.

use crate::names::{LinkName, Mac};
use ipnet::IpNet;
use std::net::SocketAddr;

/// The forwarding entries of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The TUN device of the packet engine.
    pub device: LinkName,
    /// The device's MTU in bytes.
    pub mtu: u32,
    /// The peers' subnets and their next hops.
    pub peers: Vec<(IpNet, NextHop)>,
}

/// The next hop of a peer's subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The peer's address and port: the destination of this node's datagrams and the source of the peer's datagrams.
    pub address: SocketAddr,
    /// The MAC of the peer's VTEP, if the encapsulation uses a MAC.
    pub mac: Option<Mac>,
    /// Whether the peer accepts encapsulated IPv6 packets.
    pub carries_v6: bool,
    /// Whether the peer honours the outer ECN field (RFC 6040 normal mode).
    pub outer_ecn: bool,
}
