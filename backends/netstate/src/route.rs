//! Routes of the main table.

use crate::names::LinkName;
use ipnet::IpNet;
use std::net::IpAddr;

/// The protocol number of routes made by hand, and by Go flannel (RTPROT_BOOT).
pub const BOOT: u8 = 3;

/// The metric of a route of ours and of Go flannel's: the kernel makes 1024 of none for IPv6.
pub fn metric(net: &IpNet) -> u32 {
    match net {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => 1024,
    }
}

/// The content of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteSpec {
    /// The gateway.
    pub via: Option<IpAddr>,
    /// The outgoing interface; the empty name where the kernel has none or several.
    pub dev: LinkName,
    /// Whether the gateway is taken as reachable on the interface, whatever the addresses say.
    pub onlink: bool,
    /// What happens to packets.
    pub kind: RouteKind,
    /// Distance to the destination; 0 is universe.
    pub scope: u8,
    /// Who made it; ours carry our mark, what Go flannel left carries `boot`.
    pub protocol: u8,
}

/// What a route does with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteKind {
    /// Sends them on.
    Unicast,
    /// Swallows them.
    Blackhole,
    /// Anything else (RTN_*); never wanted, only found.
    Other(u8),
}
