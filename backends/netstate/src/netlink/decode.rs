//! The kernel's links and routes as flannel's objects.

use super::{ipip, vxlan};
use crate::link::tun::{self, TunSpec};
use crate::link::wireguard::WireguardSpec;
use crate::link::{LinkKind, LinkSpec};
use crate::names::{LinkName, Mac};
use crate::route::{RouteKind, RouteSpec};
use ipnet::IpNet;
use netlink::Received;
use netlink::link::Link;
use netlink::route::Route;
use netlink::uapi::*;

pub(super) struct SeenLink {
    pub index: u32,
    pub name: LinkName,
    pub spec: LinkSpec,
}

/// A route of the main table without a type of service, as flannel's routes are.
pub(super) struct PlainRoute {
    pub net: IpNet,
    pub metric: u32,
    /// Of the outgoing link.
    pub index: u32,
    /// Its device has no name yet.
    pub spec: RouteSpec,
}

pub(super) fn decode_link(link: &Link<'_>) -> Option<SeenLink> {
    let spec = LinkSpec {
        kind: decode_kind(link),
        mac: link.mac.map(Mac),
        mtu: link.mtu,
        up: link.has(IFF_UP),
        accept_ra: link.accept_ra(),
        checksum_offload: None,
    };
    Some(SeenLink { index: link.index, name: LinkName::parse(link.name)?, spec })
}

fn decode_kind(link: &Link<'_>) -> LinkKind {
    match link.kind {
        crate::link::vxlan::KIND => LinkKind::Vxlan(vxlan::decode(link.data)),
        crate::link::ipip::KIND => LinkKind::Ipip(ipip::decode(link.data)),
        // Key and port are read over generic netlink.
        crate::link::wireguard::KIND => LinkKind::Wireguard(WireguardSpec { key: None, port: 0 }),
        tun::KIND => LinkKind::Tun(TunSpec { held: false }),
        "" => LinkKind::Other("device".to_owned()),
        other => LinkKind::Other(other.to_owned()),
    }
}

pub(super) fn decode_plain_route(message: &Received<'_>) -> Option<PlainRoute> {
    let route = Route::decode(message)?;
    (route.tos == 0 && route.is_of_main_table()).then(|| PlainRoute {
        net: route.net,
        metric: route.metric,
        index: route.index,
        spec: route_spec(&route),
    })
}

/// Without the name of the device.
pub(super) fn route_spec(route: &Route) -> RouteSpec {
    RouteSpec {
        via: route.via,
        dev: LinkName::default(),
        onlink: route.flags & RTNH_F_ONLINK != 0,
        kind: route_kind(route),
        scope: route.scope,
        protocol: route.protocol,
    }
}

pub(super) fn route_kind(route: &Route) -> RouteKind {
    match route.kind {
        RTN_UNICAST => RouteKind::Unicast,
        RTN_BLACKHOLE => RouteKind::Blackhole,
        RTN_UNREACHABLE => RouteKind::Unreachable,
        other => RouteKind::Other(other),
    }
}
