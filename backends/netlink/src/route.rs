//! Routes of any table, and the results of route look-ups.

use crate::client::Query;
use crate::header::lookup_header;
use crate::uapi::*;
use crate::wire::{self, Message, Received};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    pub net: IpNet,
    /// `None` if the destination is on-link, or the route has several paths.
    pub via: Option<IpAddr>,
    /// The index of the outgoing link; 0 without one or with several paths.
    pub index: u32,
    /// Empty unless the route has several paths.
    pub paths: Vec<Path>,
    pub metric: u32,
    pub table: u32,
    /// This host sends packets over the route from this address.
    pub source: Option<IpAddr>,
    /// The type of service.
    pub tos: u8,
    /// RTPROT_*.
    pub protocol: u8,
    /// RT_SCOPE_*.
    pub scope: u8,
    pub kind: RouteKind,
    /// RTNH_F_* and RTM_F_*.
    pub flags: u32,
}

/// RTN_*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteKind {
    /// RTN_UNICAST.
    #[default]
    Unicast,
    /// RTN_BLACKHOLE: drops packets silently.
    Blackhole,
    /// RTN_UNREACHABLE: drops packets, and tells their senders.
    Unreachable,
    Other(u8),
}

impl RouteKind {
    fn of_number(number: u8) -> Self {
        match number {
            RTN_UNICAST => Self::Unicast,
            RTN_BLACKHOLE => Self::Blackhole,
            RTN_UNREACHABLE => Self::Unreachable,
            other => Self::Other(other),
        }
    }

    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Unicast => RTN_UNICAST,
            Self::Blackhole => RTN_BLACKHOLE,
            Self::Unreachable => RTN_UNREACHABLE,
            Self::Other(number) => number,
        }
    }

    /// True if the route drops packets on purpose, and thus has no device. For IPv6, the kernel
    /// shows such routes on `lo`.
    #[must_use]
    pub fn drops(self) -> bool {
        matches!(self, Self::Blackhole | Self::Unreachable)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// `None` if the destination is on-link.
    pub via: Option<IpAddr>,
    pub index: u32,
}

impl Route {
    /// From RTM_NEWROUTE or RTM_DELROUTE.
    #[must_use]
    pub fn decode(message: &Received<'_>) -> Option<Self> {
        let body = message.body;
        if !matches!(message.kind, RTM_NEWROUTE | RTM_DELROUTE) {
            return None;
        }
        let mut destination = match wire::u8_at(body, 0)? {
            AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => return None,
        };
        let mut route = Self {
            table: u32::from(wire::u8_at(body, 4)?),
            tos: wire::u8_at(body, 3)?,
            protocol: wire::u8_at(body, 5)?,
            scope: wire::u8_at(body, 6)?,
            kind: RouteKind::of_number(wire::u8_at(body, 7)?),
            flags: wire::u32_at(body, 8)?,
            ..Self::default()
        };
        for (kind, value) in wire::read_attrs(body, RTMSG) {
            match kind {
                RTA_DST => destination = wire::read_ip(value)?,
                RTA_OIF => route.index = wire::u32_at(value, 0)?,
                RTA_GATEWAY | RTA_VIA => route.via = Some(decode_gateway(kind, value)?),
                RTA_PRIORITY => route.metric = wire::u32_at(value, 0)?,
                RTA_TABLE => route.table = wire::u32_at(value, 0)?,
                RTA_PREFSRC => route.source = wire::read_ip(value),
                RTA_MULTIPATH => route.paths = decode_paths(value),
                _ => {}
            }
        }
        route.net = IpNet::new(destination, wire::u8_at(body, 1)?).ok()?;
        Some(route)
    }

    /// In the main table, and not a cached copy.
    #[must_use]
    pub fn is_of_main_table(&self) -> bool {
        self.table == RT_TABLE_MAIN && self.flags & RTM_F_CLONED == 0
    }

    #[must_use]
    pub fn is_default(&self) -> bool {
        self.net.prefix_len() == 0
    }

    /// False for the types `unreachable`, `blackhole` and `prohibit`.
    #[must_use]
    pub fn carries(&self) -> bool {
        self.kind == RouteKind::Unicast
    }

    /// The index of the outgoing link, if the destination is on-link.
    #[must_use]
    pub fn link(&self) -> Option<u32> {
        (self.carries() && self.via.is_none() && self.index != 0).then_some(self.index)
    }

    /// Makes one route of each path.
    #[must_use]
    pub fn split(self) -> Vec<Self> {
        if self.paths.is_empty() {
            return vec![self];
        }
        let of = |path: &Path| Self { via: path.via, index: path.index, paths: Vec::new(), ..self };
        self.paths.iter().map(of).collect()
    }
}

/// RTA_VIA is a gateway of the other family.
fn decode_gateway(kind: u16, value: &[u8]) -> Option<IpAddr> {
    wire::read_ip(if kind == RTA_VIA { value.get(RTVIA_ADDR..)? } else { value })
}

/// A sequence of struct rtnexthop.
fn decode_paths(mut rest: &[u8]) -> Vec<Path> {
    let mut paths = Vec::new();
    while let Some(hop) = wire::u16_at(rest, 0)
        .and_then(|len| rest.get(..usize::from(len)))
        .filter(|hop| hop.len() >= RTNEXTHOP)
    {
        let gateway = wire::read_attrs(hop, RTNEXTHOP)
            .filter(|(kind, _)| matches!(*kind, RTA_GATEWAY | RTA_VIA))
            .last();
        let via = gateway.and_then(|(kind, value)| decode_gateway(kind, value));
        paths.push(Path { via, index: wire::u32_at(hop, 4).unwrap_or_default() });
        rest = rest.get(hop.len().next_multiple_of(4)..).unwrap_or_default();
    }
    paths
}

/// Table 0 stands for all tables. Older kernels list those of all tables.
#[must_use]
pub fn routes_of_table(family: u8, table: u32) -> Query {
    let message = Message::new(RTM_GETROUTE, 0, &lookup_header(family, 0, 0, 0));
    Query::new("routes", message.number(RTA_TABLE, table))
}

/// For a look-up: the route of this host's packets. `flags` are of RTM_F_*.
#[must_use]
pub fn route_to(to: IpAddr, flags: u32) -> Message {
    let (family, len) = family_and_length(to);
    Message::new(RTM_GETROUTE, 0, &lookup_header(family, len, 0, flags)).ip(RTA_DST, to)
}

/// For a look-up: the route of a packet that arrives on the link `incoming`.
#[must_use]
pub fn forwarded_route(from: IpAddr, to: IpAddr, incoming: u32) -> Message {
    let (family, len) = family_and_length(to);
    Message::new(RTM_GETROUTE, 0, &lookup_header(family, len, len, 0))
        .ip(RTA_DST, to)
        .ip(RTA_SRC, from)
        .number(RTA_IIF, incoming)
}

/// The length is in bits.
fn family_and_length(ip: IpAddr) -> (u8, u8) {
    if ip.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::header::route_header;
    use crate::link::Link;
    use crate::neighbor::Neighbor;
    use proptest::prelude::*;

    fn hop(index: u32, kind: u16, value: &[u8]) -> Vec<u8> {
        let attribute = [
            &u16::try_from(4 + value.len()).unwrap().to_ne_bytes()[..],
            &kind.to_ne_bytes(),
            value,
        ]
        .concat();
        let len = u16::try_from(RTNEXTHOP + attribute.len()).unwrap();
        [
            &len.to_ne_bytes()[..],
            &[0, 0],
            &index.to_ne_bytes(),
            &attribute,
            &vec![0; usize::from(len).next_multiple_of(4) - usize::from(len)],
        ]
        .concat()
    }

    #[test]
    fn multipath_route_has_each_of_its_paths() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let inet6 = [
            &u16::from(AF_INET6).to_ne_bytes()[..],
            &"fe80::1".parse::<Ipv6Addr>().unwrap().octets(),
        ]
        .concat();
        let hops = [hop(2, RTA_GATEWAY, &[192, 0, 2, 1]), hop(3, RTA_VIA, &inet6)].concat();
        let header = route_header(AF_INET, 0, 16, 0, RTN_UNICAST, 0);
        let bytes = Message::new(RTM_NEWROUTE, 0, &header)
            .number(RTA_PRIORITY, 7)
            .attr(RTA_MULTIPATH, &hops)
            .finish(1, 0);
        let route = Route::decode(&wire::split_messages(&bytes).next().unwrap()).unwrap();
        assert_eq!((route.via, route.index, route.protocol, route.metric), (None, 0, 16, 7));
        let paths: Vec<_> = route.paths.into_iter().map(|path| (path.via, path.index)).collect();
        assert_eq!(paths, [(Some(ip("192.0.2.1")), 2), (Some(ip("fe80::1")), 3)]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(kind in 16u16..31, body in proptest::collection::vec(any::<u8>(), 0..120)) {
            let message = Received { kind, flags: 0, sequence: 1, body: &body };
            let _ = (Link::decode(&message), Address::decode(&message), Neighbor::decode(&message), Route::decode(&message), decode_paths(&body));
        }
    }
}
