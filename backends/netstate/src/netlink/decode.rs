//! Decodes kernel messages: one function for each kind, without I/O.

use super::uapi::*;
use super::wire::{self, Received, inside};
use super::{ipip, vxlan};
use crate::link::tun::{self, TunSpec};
use crate::link::wireguard::WireguardSpec;
use crate::link::{LinkKind, LinkSpec};
use crate::names::{LinkName, Mac};
use crate::route::{RouteKind, RouteSpec};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) struct SeenLink {
    pub index: u32,
    pub name: LinkName,
    pub spec: LinkSpec,
}

pub(super) struct SeenRoute {
    pub net: IpNet,
    pub metric: u32,
    pub oif: u32,
    pub table: u32,
    /// This host sends packets over the route from this address.
    pub source: Option<IpAddr>,
    /// The route is in the main table, has no type of service and is not a cached copy.
    pub plain: bool,
    pub spec: RouteSpec,
}

pub(super) fn link(message: &Received<'_>) -> Option<SeenLink> {
    if message.kind != RTM_NEWLINK || wire::u8_at(message.body, 0)? == AF_BRIDGE {
        return None;
    }
    let index = wire::u32_at(message.body, 4)?;
    let up = wire::u32_at(message.body, 8)? & IFF_UP != 0;
    let mut name = LinkName::default();
    let mut spec = LinkSpec {
        kind: LinkKind::Other("device".to_owned()),
        mac: None,
        mtu: 0,
        up,
        accept_ra: None,
        checksum_offload: None,
    };
    for (kind, value) in wire::attrs(message.body, IFINFOMSG) {
        match kind {
            IFLA_ADDRESS => spec.mac = value.try_into().ok().map(Mac),
            IFLA_IFNAME => name = LinkName::parse(wire::text(value))?,
            IFLA_MTU => spec.mtu = wire::u32_at(value, 0)?,
            IFLA_LINKINFO => spec.kind = link_kind(value),
            IFLA_AF_SPEC => spec.accept_ra = accept_ra(value),
            _ => {}
        }
    }
    Some(SeenLink { index, name, spec })
}

/// Decodes IFLA_INET6_CONF, an array of numbers.
fn accept_ra(families: &[u8]) -> Option<bool> {
    let conf = inside(inside(families, u16::from(AF_INET6))?, IFLA_INET6_CONF)?;
    wire::u32_at(conf, DEVCONF_ACCEPT_RA * size_of::<u32>()).map(|value| value != 0)
}

fn link_kind(info: &[u8]) -> LinkKind {
    match inside(info, IFLA_INFO_KIND).map(wire::text) {
        Some(crate::link::vxlan::KIND) => {
            LinkKind::Vxlan(vxlan::decode(inside(info, IFLA_INFO_DATA).unwrap_or_default()))
        }
        Some(crate::link::ipip::KIND) => {
            LinkKind::Ipip(ipip::decode(inside(info, IFLA_INFO_DATA).unwrap_or_default()))
        }
        // Key and port are read over generic netlink.
        Some(crate::link::wireguard::KIND) => {
            LinkKind::Wireguard(WireguardSpec { key: None, port: 0 })
        }
        Some(tun::KIND) => LinkKind::Tun(TunSpec { held: false }),
        Some(other) => LinkKind::Other(other.to_owned()),
        None => LinkKind::Other("device".to_owned()),
    }
}

pub(super) fn address(message: &Received<'_>, family: u8, index: u32) -> Option<(IpNet, u8)> {
    let body = message.body;
    if message.kind != RTM_NEWADDR
        || wire::u8_at(body, 0)? != family
        || wire::u32_at(body, 4)? != index
    {
        return None;
    }
    // A point-to-point link has both attributes: IFA_ADDRESS is then the remote address.
    let of = |wanted| {
        wire::attrs(body, IFADDRMSG)
            .find(|(kind, _)| *kind == wanted)
            .and_then(|(_, value)| wire::ip(value))
    };
    let ip = of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?;
    Some((IpNet::new(ip, wire::u8_at(body, 1)?).ok()?, wire::u8_at(body, 3)?))
}

/// A neighbour or an FDB entry.
pub(super) struct SeenNeighbor {
    pub family: u8,
    pub index: u32,
    state: u16,
    flags: u8,
    pub dst: Option<IpAddr>,
    pub mac: Option<Mac>,
    /// The program that added the entry, if it sets a number.
    pub protocol: Option<u8>,
}

impl SeenNeighbor {
    pub(super) fn permanent(&self) -> bool {
        self.state & NUD_PERMANENT != 0
    }

    /// NTF_EXT_LEARNED: a program outside the kernel learned the entry.
    pub(super) fn fed(&self) -> bool {
        self.flags & NTF_EXT_LEARNED != 0
    }

    /// False while the MAC's resolution is pending or has failed, and for multicast and loopback
    /// entries, which exist on every interface.
    pub(super) fn says_something(&self) -> bool {
        // Static FDB entries that are not permanent are also NOARP.
        self.state & (NUD_FAILED | NUD_INCOMPLETE) == 0
            && (self.family == AF_BRIDGE || self.state & !NUD_NOARP != 0)
    }

    /// Another host has answered for the entry's address.
    pub(super) fn answered(&self) -> bool {
        self.state & (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE) != 0
    }

    /// The kernel has asked for the entry's MAC, but no host has answered.
    pub(super) fn unanswered(&self) -> bool {
        self.state & (NUD_INCOMPLETE | NUD_FAILED) != 0
    }
}

pub(super) fn neighbor(message: &Received<'_>) -> Option<SeenNeighbor> {
    if message.kind != RTM_NEWNEIGH {
        return None;
    }
    let body = message.body;
    let (family, index, state, flags) = (
        wire::u8_at(body, 0)?,
        wire::u32_at(body, 4)?,
        wire::u16_at(body, 8)?,
        wire::u8_at(body, 10)?,
    );
    let mut seen =
        SeenNeighbor { family, index, state, flags, dst: None, mac: None, protocol: None };
    for (kind, value) in wire::attrs(body, NDMSG) {
        match kind {
            NDA_DST => seen.dst = wire::ip(value),
            NDA_LLADDR => seen.mac = value.try_into().ok().map(Mac),
            NDA_PROTOCOL => seen.protocol = wire::u8_at(value, 0),
            _ => {}
        }
    }
    Some(seen)
}

/// A route of any table, or the result of a lookup.
pub(super) fn route(message: &Received<'_>) -> Option<SeenRoute> {
    let body = message.body;
    if message.kind != RTM_NEWROUTE {
        return None;
    }
    let (family, len, tos, header_table) = (
        wire::u8_at(body, 0)?,
        wire::u8_at(body, 1)?,
        wire::u8_at(body, 3)?,
        wire::u8_at(body, 4)?,
    );
    let (protocol, scope, kind, flags) = (
        wire::u8_at(body, 5)?,
        wire::u8_at(body, 6)?,
        wire::u8_at(body, 7)?,
        wire::u32_at(body, 8)?,
    );
    let unspecified = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let kind = match kind {
        RTN_UNICAST => RouteKind::Unicast,
        RTN_BLACKHOLE => RouteKind::Blackhole,
        RTN_UNREACHABLE => RouteKind::Unreachable,
        other => RouteKind::Other(other),
    };
    let mut spec = RouteSpec {
        via: None,
        dev: LinkName::default(),
        onlink: flags & RTNH_F_ONLINK != 0,
        kind,
        scope,
        protocol,
    };
    let (mut dst, mut oif, mut metric, mut table, mut source) =
        (unspecified, 0, 0, u32::from(header_table), None);
    for (kind, value) in wire::attrs(body, RTMSG) {
        match kind {
            RTA_DST => dst = wire::ip(value)?,
            RTA_OIF => oif = wire::u32_at(value, 0)?,
            RTA_GATEWAY => spec.via = wire::ip(value),
            RTA_PRIORITY => metric = wire::u32_at(value, 0)?,
            RTA_TABLE => table = wire::u32_at(value, 0)?,
            RTA_PREFSRC => source = wire::ip(value),
            // A gateway of the other family. Our routes have none, but others may.
            RTA_VIA => spec.via = wire::ip(value.get(RTVIA_ADDR..)?),
            _ => {}
        }
    }
    // Our routes have no type of service, and a cached copy is not a route.
    let plain = tos == 0 && table == u32::from(RT_TABLE_MAIN) && flags & RTM_F_CLONED == 0;
    Some(SeenRoute { net: IpNet::new(dst, len).ok()?, metric, oif, table, source, plain, spec })
}
