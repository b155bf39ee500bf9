//! What the kernel's messages say: pure, one function a kind of message.

use super::SeenLink;
use super::number::*;
use super::wire::{self, Received};
use crate::kernel::names::{LinkName, Mac};
use crate::kernel::state::{LinkKind, LinkSpec, RouteKind, RouteSpec, VxlanSpec};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A route as a message tells it.
pub(super) struct SeenRoute {
    pub net: IpNet,
    pub metric: u32,
    pub oif: u32,
    /// Whether it is an ordinary route of the main table.
    pub plain: bool,
    pub spec: RouteSpec,
}

pub(super) fn link(message: &Received<'_>) -> Option<SeenLink> {
    if message.kind != NEWLINK || wire::u8_at(message.body, 0)? == BRIDGE {
        return None;
    }
    let index = wire::u32_at(message.body, 4)?;
    let up = wire::u32_at(message.body, 8)? & UP != 0;
    let mut name = LinkName::default();
    let mut spec = LinkSpec { kind: LinkKind::Other("device".to_owned()), mac: None, mtu: 0, up, accept_ra: None, checksum_offload: None };
    for (kind, value) in wire::attrs(message.body, 16) {
        match kind {
            1 => spec.mac = value.try_into().ok().map(Mac),
            3 => name = LinkName::parse(wire::text(value))?,
            4 => spec.mtu = wire::u32_at(value, 0)?,
            18 => spec.kind = link_kind(value),
            // IFLA_AF_SPEC / AF_INET6 / IFLA_INET6_CONF, an array in which accept_ra is the fourth (linux/ipv6.h, DEVCONF_*).
            26 => spec.accept_ra = inside(value, 10).and_then(|v6| inside(v6, 2)).and_then(|conf| wire::u32_at(conf, 12)).map(|value| value != 0),
            _ => {}
        }
    }
    Some(SeenLink { index, name, spec })
}

fn inside(nest: &[u8], wanted: u16) -> Option<&[u8]> {
    wire::attrs(nest, 0).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

fn link_kind(info: &[u8]) -> LinkKind {
    match inside(info, 1).map(wire::text) {
        Some("vxlan") => LinkKind::Vxlan(vxlan(inside(info, 2).unwrap_or_default())),
        Some("tun") => LinkKind::Tun { held: false },
        Some(other) => LinkKind::Other(other.to_owned()),
        None => LinkKind::Other("device".to_owned()),
    }
}

fn vxlan(data: &[u8]) -> VxlanSpec {
    let mut spec = VxlanSpec { vni: 0, port: None, local: None, lower: 0, learning: false, gbp: false };
    for (kind, value) in wire::attrs(data, 0) {
        match kind {
            1 => spec.vni = wire::u32_at(value, 0).unwrap_or(0),
            3 => spec.lower = wire::u32_at(value, 0).unwrap_or(0),
            4 | 17 => spec.local = wire::ip(value).filter(|ip| !ip.is_unspecified()).or(spec.local),
            7 => spec.learning = wire::u8_at(value, 0) == Some(1),
            15 => spec.port = value.try_into().ok().map(u16::from_be_bytes),
            23 => spec.gbp = true,
            _ => {}
        }
    }
    spec
}

pub(super) fn address(message: &Received<'_>, family: u8, index: u32) -> Option<(IpNet, u8)> {
    let body = message.body;
    if message.kind != NEWADDR || wire::u8_at(body, 0)? != family || wire::u32_at(body, 4)? != index {
        return None;
    }
    // IFA_LOCAL where there is one (IPv4, point to point), else IFA_ADDRESS.
    let of = |wanted| wire::attrs(body, 8).find(|(kind, _)| *kind == wanted).and_then(|(_, value)| wire::ip(value));
    let ip = of(2).or_else(|| of(1))?;
    Some((IpNet::new(ip, wire::u8_at(body, 1)?).ok()?, wire::u8_at(body, 3)?))
}

/// A neighbour or an FDB entry as a message tells it.
pub(super) struct SeenNeighbor {
    pub family: u8,
    pub index: u32,
    state: u16,
    pub dst: Option<IpAddr>,
    pub mac: Option<Mac>,
}

impl SeenNeighbor {
    pub fn permanent(&self) -> bool {
        self.state & PERMANENT != 0
    }
}

pub(super) fn neighbor(message: &Received<'_>) -> Option<SeenNeighbor> {
    if message.kind != NEWNEIGH {
        return None;
    }
    let body = message.body;
    let (family, index, state) = (wire::u8_at(body, 0)?, wire::u32_at(body, 4)?, wire::u16_at(body, 8)?);
    let mut seen = SeenNeighbor { family, index, state, dst: None, mac: None };
    for (kind, value) in wire::attrs(body, 12) {
        match kind {
            1 => seen.dst = wire::ip(value),
            2 => seen.mac = value.try_into().ok().map(Mac),
            _ => {}
        }
    }
    Some(seen)
}

/// A route of any table, or the answer to a look-up.
pub(super) fn route(message: &Received<'_>) -> Option<SeenRoute> {
    let body = message.body;
    if message.kind != NEWROUTE {
        return None;
    }
    let (family, len, tos, header_table) = (wire::u8_at(body, 0)?, wire::u8_at(body, 1)?, wire::u8_at(body, 3)?, wire::u8_at(body, 4)?);
    let (protocol, scope, kind, flags) = (wire::u8_at(body, 5)?, wire::u8_at(body, 6)?, wire::u8_at(body, 7)?, wire::u32_at(body, 8)?);
    let unspecified = match family {
        INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let kind = match kind {
        1 => RouteKind::Unicast,
        BLACKHOLE => RouteKind::Blackhole,
        other => RouteKind::Other(other),
    };
    let mut spec = RouteSpec { via: None, dev: LinkName::default(), onlink: flags & ONLINK != 0, kind, scope, protocol };
    let (mut dst, mut oif, mut metric, mut table) = (unspecified, 0, 0, u32::from(header_table));
    for (kind, value) in wire::attrs(body, 12) {
        match kind {
            1 => dst = wire::ip(value)?,
            4 => oif = wire::u32_at(value, 0)?,
            5 => spec.via = wire::ip(value),
            6 => metric = wire::u32_at(value, 0)?,
            15 => table = wire::u32_at(value, 0)?,
            // A gateway of the other family; nothing of ours has one, but it is a gateway.
            18 => spec.via = wire::ip(value.get(2..)?),
            _ => {}
        }
    }
    // Type of service and copies from a cache (RTM_F_CLONED) are nothing that we make.
    const CLONED: u32 = 0x200;
    let plain = tos == 0 && table == u32::from(MAIN) && flags & CLONED == 0;
    Some(SeenRoute { net: IpNet::new(dst, len).ok()?, metric, oif, plain, spec })
}
