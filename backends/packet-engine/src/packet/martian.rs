//! Addresses that no packet between nodes can have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4: "this network", loopback, link-local, multicast, class E and broadcast. IPv6: unspecified, loopback,
/// link-local, multicast and IPv4-mapped.
#[inline]
#[must_use]
pub fn is_martian(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => martian_v4(*ip),
        IpAddr::V6(ip) => martian_v6(*ip),
    }
}

#[inline]
fn martian_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    matches!(a, 0 | 127 | 224..) || (a, b) == (169, 254)
}

#[inline]
fn martian_v6(ip: Ipv6Addr) -> bool {
    let bits = ip.to_bits();
    bits <= 1 || bits >> 120 == 0xff || bits >> 118 == 0xfe80 >> 6 || bits >> 32 == 0xffff
}
