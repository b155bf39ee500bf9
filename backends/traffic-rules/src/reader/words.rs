//! The kernel's numbers for names in listings of rules: address types, connection states, protocols and ICMP types.

use types::Family;

pub(super) const TCP: u32 = 6;
/// RTN_UNICAST of rtnetlink.
pub(super) const UNICAST: u32 = 1;
/// RTN_LOCAL of rtnetlink: addresses of this host.
pub(super) const LOCAL: u32 = 2;

/// States of connection tracking, as bits of the kernel's state mask.
pub mod state {
    /// Connection tracking could not assign the packet to a connection.
    pub const INVALID: u32 = 1;
    /// The kernel has seen packets in both directions.
    pub const ESTABLISHED: u32 = 2;
    /// Another connection has announced this one, such as an FTP data connection.
    pub const RELATED: u32 = 4;
    /// The first packet of a connection.
    pub const NEW: u32 = 8;
    /// A rule has excluded the packet from connection tracking.
    pub const UNTRACKED: u32 = 64;
}

/// Their headers begin with two ports.
pub(super) const WITH_PORTS: [u32; 5] = [TCP, 17, 33, 132, 136];

/// The bit of a connection state.
pub(super) fn state_of(name: &str) -> Option<u32> {
    Some(match name.to_ascii_lowercase().as_str() {
        "invalid" => state::INVALID,
        "established" => state::ESTABLISHED,
        "related" => state::RELATED,
        "new" => state::NEW,
        "untracked" => state::UNTRACKED,
        _ => return None,
    })
}

/// Accepts a name or a decimal number.
pub(super) fn protocol(name: &str) -> Option<u32> {
    Some(match name.to_ascii_lowercase().as_str() {
        "icmp" => 1,
        "igmp" => 2,
        "ipencap" | "ipip" | "ip-encap" | "ipv4" => 4,
        "tcp" => TCP,
        "udp" => 17,
        "dccp" => 33,
        "ipv6" => 41,
        "gre" => 47,
        "esp" | "ipv6-crypt" => 50,
        "ah" | "ipv6-auth" => 51,
        "icmpv6" | "ipv6-icmp" => 58,
        "ospf" | "ospfigp" => 89,
        "pim" => 103,
        "vrrp" => 112,
        "sctp" => 132,
        "udplite" => 136,
        other => return other.parse().ok().filter(|number| *number < 256),
    })
}

/// Accepts a name or a decimal number.
pub(super) fn icmp_type(name: &str, family: Family) -> Option<u32> {
    Some(match (name, family) {
        ("echo-reply", Family::V4) => 0,
        ("destination-unreachable", Family::V4) => 3,
        ("source-quench", Family::V4) => 4,
        ("redirect", Family::V4) => 5,
        ("echo-request", Family::V4) => 8,
        ("router-advertisement", Family::V4) => 9,
        ("router-solicitation", Family::V4) => 10,
        ("time-exceeded", Family::V4) => 11,
        ("parameter-problem", Family::V4) => 12,
        ("timestamp-request", Family::V4) => 13,
        ("timestamp-reply", Family::V4) => 14,
        ("destination-unreachable", Family::V6) => 1,
        ("packet-too-big", Family::V6) => 2,
        ("time-exceeded", Family::V6) => 3,
        ("parameter-problem", Family::V6) => 4,
        ("echo-request", Family::V6) => 128,
        ("echo-reply", Family::V6) => 129,
        ("mld-listener-query", Family::V6) => 130,
        ("mld-listener-report", Family::V6) => 131,
        ("nd-router-solicit", Family::V6) => 133,
        ("nd-router-advert", Family::V6) => 134,
        ("nd-neighbor-solicit", Family::V6) => 135,
        ("nd-neighbor-advert", Family::V6) => 136,
        ("nd-redirect", Family::V6) => 137,
        _ => return name.parse().ok().filter(|number| *number < 256),
    })
}

/// The rtnetlink number of an address type.
pub(super) fn kind(name: &str) -> Option<u32> {
    Some(match name.to_ascii_lowercase().as_str() {
        "unicast" => UNICAST,
        "local" => LOCAL,
        "broadcast" => 3,
        "anycast" => 4,
        "multicast" => 5,
        "blackhole" => 6,
        "unreachable" => 7,
        "prohibit" => 8,
        _ => return None,
    })
}

/// Decimal, or hexadecimal with the prefix `0x`.
pub(crate) fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
