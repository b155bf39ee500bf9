//! How packets are forwarded where the kernel does not do it: plain entries, from which an engine builds a lookup of its own.

use crate::names::{LinkName, Mac};
use ipnet::IpNet;
use std::net::SocketAddr;

/// How one device of an engine forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The device.
    pub device: LinkName,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The peers' subnets, and where each is reached.
    pub peers: Vec<(IpNet, NextHop)>,
}

/// Where a peer's subnet is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Where its datagrams go, and with whose address its own come.
    pub address: SocketAddr,
    /// Its VTEP's MAC, where the encapsulation has one.
    pub mac: Option<Mac>,
    /// Whether IPv6 may be sent to it.
    pub carries_v6: bool,
    /// Whether it takes the outer ECN field into account (RFC 6040 normal mode).
    pub outer_ecn: bool,
}
