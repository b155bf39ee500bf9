//! Routes of the main table.

use crate::names::LinkName;
use ipnet::IpNet;
use std::net::IpAddr;

/// The protocol number of routes that are added manually and by Go flannel (RTPROT_BOOT).
pub const BOOT: u8 = 3;

/// The scope of routes that need no gateway (RT_SCOPE_LINK).
pub const LINK: u8 = 253;

/// Returns the metric of our routes and Go flannel's. For IPv6 the kernel turns 0 into 1024.
pub fn metric(net: &IpNet) -> u32 {
    match net {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => 1024,
    }
}

/// The content of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteSpec {
    /// The gateway. `None` if the destination is on-link.
    pub via: Option<IpAddr>,
    /// The outgoing interface. Empty if the kernel has none or several.
    pub dev: LinkName,
    /// Whether the kernel treats the gateway as reachable on the interface, regardless of addresses.
    pub onlink: bool,
    /// The route type: forward, drop or another one.
    pub kind: RouteKind,
    /// The scope; 0 is universe.
    pub scope: u8,
    /// The protocol number: ours, or `boot` for routes of Go flannel.
    pub protocol: u8,
}

/// Whether a route of protocol `boot` is like Go flannel's routes to other nodes. Those lead over a gateway to a subnet of this `length` other than our own.
pub(crate) fn is_go_flannels(
    net: &IpNet,
    route: &RouteSpec,
    own: Option<IpNet>,
    length: u8,
) -> bool {
    route.kind == RouteKind::Unicast
        && route.via.is_some()
        && net.prefix_len() == length
        && own.is_none_or(|own| own.trunc() != *net)
}

/// The route type (RTN_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteKind {
    /// Forwards packets (RTN_UNICAST).
    Unicast,
    /// Drops packets silently (RTN_BLACKHOLE).
    Blackhole,
    /// Anything else (RTN_*). Never desired, only found.
    Other(u8),
}
