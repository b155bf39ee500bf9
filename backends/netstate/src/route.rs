//! Routes of the main table.

use crate::names::LinkName;
use ipnet::IpNet;
use std::net::IpAddr;

/// The protocol number of routes that operators add manually and that Go flannel adds (RTPROT_BOOT).
pub const BOOT: u8 = 3;

/// The scope of routes that need no gateway (RT_SCOPE_LINK).
pub const LINK: u8 = 253;

/// Returns the metric of the routes of flannel-rs and Go flannel. For IPv6, the kernel converts metric 0 to 1024.
pub fn metric(net: &IpNet) -> u32 {
    match net {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => 1024,
    }
}

/// The properties of a route, apart from its destination and metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteSpec {
    /// The gateway, or `None` if the destination is on-link.
    pub via: Option<IpAddr>,
    /// The outgoing interface. The name is empty if the kernel's route has no interface or several interfaces.
    pub dev: LinkName,
    /// Whether the kernel treats the gateway as reachable on the interface, regardless of addresses.
    pub onlink: bool,
    /// The route type: forward, drop or another type.
    pub kind: RouteKind,
    /// The scope; 0 is universe.
    pub scope: u8,
    /// The protocol number: flannel-rs' number, or `boot` for routes of Go flannel.
    pub protocol: u8,
}

impl RouteSpec {
    /// Creates a route that forwards packets to an interface, over a gateway if there is one.
    pub fn forwarding(via: Option<IpAddr>, dev: LinkName, protocol: u8) -> Self {
        Self { via, dev, ..Self::dropping(RouteKind::Unicast, protocol) }
    }

    /// Creates a route without an interface, which drops packets.
    pub(crate) fn dropping(kind: RouteKind, protocol: u8) -> Self {
        Self { via: None, dev: LinkName::default(), onlink: false, kind, scope: 0, protocol }
    }
}

/// Returns whether a route of protocol `boot` is like Go flannel's routes to other nodes. Go flannel's routes lead
/// over a gateway to another node's subnet, whose prefix length is `length`.
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
    /// Drops packets, and tells their senders (RTN_UNREACHABLE).
    Unreachable,
    /// Any other type (RTN_*). Only the actual state contains this type, never the desired state.
    Other(u8),
}

impl RouteKind {
    /// Returns whether the route drops packets on purpose, and thus has no device. For IPv6 the kernel shows such routes on `lo`.
    pub(crate) fn drops(self) -> bool {
        matches!(self, RouteKind::Blackhole | RouteKind::Unreachable)
    }
}
