//! Routes of the main table.

use crate::names::LinkName;
use crate::report::text::Words;
use ipnet::IpNet;
pub use netlink::route::RouteKind;
use std::fmt::Write;
use std::net::IpAddr;

/// RT_SCOPE_*, as far as routes of the main table can have them.
const SCOPES: [(u8, &str); 3] = [(200, "site"), (253, "link"), (254, "host")];
/// RTN_*.
const TYPES: [&str; 11] = [
    "none",
    "unicast",
    "local",
    "broadcast",
    "anycast",
    "multicast",
    "blackhole",
    "unreachable",
    "prohibit",
    "throw",
    "nat",
];

/// RTPROT_BOOT: routes that operators add manually and that Go flannel adds.
pub const BOOT: u8 = 3;

/// RT_SCOPE_LINK: routes that need no gateway.
pub const LINK: u8 = 253;

/// The metric of flannel-rs' and Go flannel's routes. For IPv6, the kernel converts metric 0 to
/// 1024.
#[must_use]
pub fn metric(net: &IpNet) -> u32 {
    match net {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => 1024,
    }
}

/// The properties besides destination and metric, which are the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteSpec {
    /// `None` if the destination is on-link.
    pub via: Option<IpAddr>,
    /// Empty if the kernel's route has no interface or several.
    pub dev: LinkName,
    /// The kernel treats the gateway as reachable on the interface, regardless of addresses.
    pub onlink: bool,
    pub kind: RouteKind,
    /// 0 is universe.
    pub scope: u8,
    /// flannel-rs' number, or `boot` for routes of Go flannel.
    pub protocol: u8,
}

impl RouteSpec {
    #[must_use]
    pub fn forwarding(via: Option<IpAddr>, dev: LinkName, protocol: u8) -> Self {
        Self { via, dev, ..Self::dropping(RouteKind::Unicast, protocol) }
    }

    /// The route has no interface.
    #[must_use]
    pub fn dropping(kind: RouteKind, protocol: u8) -> Self {
        Self { via: None, dev: LinkName::default(), onlink: false, kind, scope: 0, protocol }
    }

    /// As `ip route` prints it.
    #[must_use]
    pub fn text(&self, net: &IpNet, metric: u32, words: &Words) -> String {
        let mut out = String::new();
        if self.kind != RouteKind::Unicast {
            let kind = self.kind.number();
            let _ = match TYPES.get(usize::from(kind)) {
                Some(name) => write!(out, "{name} "),
                None => write!(out, "{kind} "),
            };
        }
        let _ = write!(out, "{net}");
        if let Some(via) = self.via {
            let _ = write!(out, " via {via}");
        }
        if self.dev != LinkName::default() {
            let _ = write!(out, " dev {}", self.dev);
        }
        let _ = write!(out, " proto {}", words.protocols.name(self.protocol));
        if let Some((_, scope)) = SCOPES.iter().find(|(number, _)| *number == self.scope) {
            let _ = write!(out, " scope {scope}");
        }
        if metric != 0 {
            let _ = write!(out, " metric {metric}");
        }
        if self.onlink {
            out.push_str(" onlink");
        }
        out
    }
}

/// True for a route of protocol `boot` that is like Go flannel's routes to other nodes: over a
/// gateway to another node's subnet, whose prefix length is `length`.
#[must_use]
pub fn is_go_flannels(net: &IpNet, route: &RouteSpec, own: Option<IpNet>, length: u8) -> bool {
    route.kind == RouteKind::Unicast
        && route.via.is_some()
        && net.prefix_len() == length
        && own.is_none_or(|own| own.trunc() != *net)
}
