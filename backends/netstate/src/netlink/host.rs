//! Reads this host's interfaces, routes and neighbours of any origin, and receives events about interfaces, addresses and routes.

use super::decode::{SeenNeighbor, link, neighbor, route};
use super::header::{address_header, forwarded_header, neighbor_header, route_header, rule_header};
use super::socket::{Answer, LOOKUPS, Notices, Requests};
use super::uapi::*;
use super::wire::{self, Message, Received};
use crate::host::{
    Address, Forwarded, Interface, Neighbour, Path, PolicyRule, Route, RouteAnswer, RouteError,
};
use crate::kernel::KernelError;
use crate::link::LinkKind;
use ipnet::IpNet;
use std::net::IpAddr;
use types::Family;

/// At most so many policy routing tables are read, and at most so many routes of each.
const POLICY_TABLES: usize = 4;
const POLICY_ROUTES: usize = 1024;

/// Works in the network namespace of the thread that opened it.
pub struct HostReader {
    requests: Requests,
}

impl HostReader {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, KernelError> {
        Ok(Self { requests: Requests::open()? })
    }

    /// Ordered by index, without their addresses.
    pub async fn links(&mut self) -> Result<Vec<Interface>, KernelError> {
        let request = || Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]);
        let all = self.requests.dump(
            "network interfaces",
            request,
            Vec::new,
            |list: &mut Vec<Interface>, message| {
                list.extend(interface(message));
            },
        );
        let mut interfaces = all.await?;
        interfaces.sort_by_key(|interface| interface.index);
        Ok(interfaces)
    }

    /// Ordered by index, with their addresses.
    pub async fn interfaces(&mut self) -> Result<Vec<Interface>, KernelError> {
        let mut interfaces = self.links().await?;
        let request = || Message::new(RTM_GETADDR, 0, &address_header(0, 0, 0));
        let all = self.requests.dump(
            "addresses",
            request,
            Vec::new,
            |list: &mut Vec<(u32, Address)>, message| list.extend(address(message)),
        );
        for (index, address) in all.await? {
            if let Some(interface) =
                interfaces.iter_mut().find(|interface| interface.index == index)
            {
                interface.addresses.push(address);
            }
        }
        Ok(interfaces)
    }

    /// The routes of the main table that `keep` accepts, IPv4 first. A kernel without IPv6 refuses
    /// to list IPv6 routes, so that failure is only logged.
    pub async fn routes(
        &mut self,
        keep: impl Fn(&Route) -> bool,
    ) -> Result<Vec<Route>, KernelError> {
        let mut routes = Vec::new();
        for family in Family::ALL {
            let request = || {
                Message::new(
                    RTM_GETROUTE,
                    0,
                    &route_header(family.pick(AF_INET, AF_INET6), 0, 0, 0, 0, RT_TABLE_MAIN),
                )
            };
            // A kernel without IPv6 may list the routes of all other families instead.
            let wanted = |route: &Route| route.family() == family && keep(route);
            let all = self.requests.dump(
                "routes",
                request,
                Vec::new,
                |list: &mut Vec<Route>, message| {
                    list.extend(main_route(message).filter(wanted));
                },
            );
            match all.await {
                // Moves the list instead of copying it: it may have ten thousand routes.
                Ok(all) if routes.is_empty() => routes = all,
                Ok(all) => routes.extend(all),
                Err(error) if family.is_v6() => {
                    tracing::debug!(error = %error, "cannot read IPv6 routes");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(routes)
    }

    /// The packets are this host's. The results are in the order of `targets`.
    pub async fn look_up(&mut self, targets: &[IpAddr]) -> Vec<Result<RouteAnswer, RouteError>> {
        let query = |to: &IpAddr| {
            let (family, len) = if to.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
            Message::new(RTM_GETROUTE, 0, &route_header(family, len, 0, 0, 0, 0)).ip(RTA_DST, *to)
        };
        self.answers(targets.iter().map(query).collect()).await
    }

    /// The results are in the order of `packets`.
    pub async fn look_up_forwarded(
        &mut self,
        packets: &[Forwarded],
    ) -> Vec<Result<RouteAnswer, RouteError>> {
        let query = |packet: &Forwarded| {
            let (family, len) = if packet.to.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
            Message::new(RTM_GETROUTE, 0, &forwarded_header(family, len))
                .ip(RTA_DST, packet.to)
                .ip(RTA_SRC, packet.from)
                .number(RTA_IIF, packet.incoming)
        };
        self.answers(packets.iter().map(query).collect()).await
    }

    async fn answers(&mut self, queries: Vec<Message>) -> Vec<Result<RouteAnswer, RouteError>> {
        let mut found = vec![Err(RouteError::Unanswered); queries.len()];
        let answers = self.requests.batch(queries, LOOKUPS, |which, message| {
            if let (Some(place), Some(seen)) = (found.get_mut(which), route(message)) {
                *place = if seen.oif == 0 {
                    Err(RouteError::WithoutInterface)
                } else {
                    Ok(RouteAnswer { index: seen.oif, source: seen.source })
                };
            }
        });
        for (place, answer) in answers.await.into_iter().enumerate() {
            if let (Some(place), Answer::Refused(errno, words)) = (found.get_mut(place), answer) {
                *place = Err(RouteError::Refused { errno, words });
            }
        }
        found
    }

    /// IPv4 first, in the order in which the kernel evaluates them. A kernel without IPv6 refuses
    /// to list IPv6 rules, so that failure is only logged.
    pub async fn policy_rules(&mut self) -> Result<Vec<PolicyRule>, KernelError> {
        let mut rules = Vec::new();
        for family in Family::ALL {
            let request =
                || Message::new(RTM_GETRULE, 0, &rule_header(family.pick(AF_INET, AF_INET6)));
            let all = self.requests.dump(
                "policy routing rules",
                request,
                Vec::new,
                |list: &mut Vec<PolicyRule>, message| {
                    list.extend(policy_rule(message).filter(|rule| rule.family == family));
                },
            );
            match all.await {
                Ok(all) => rules.extend(all),
                Err(error) if family.is_v6() => {
                    tracing::debug!(error = %error, "cannot read IPv6 policy routing rules");
                }
                Err(error) => return Err(error),
            }
        }
        let mut tables: Vec<u32> = rules
            .iter()
            .filter(|rule| !rule.is_standard() && !rule.conditional | rule.inverted)
            .filter_map(|rule| rule.table)
            .collect();
        tables.sort_unstable();
        tables.dedup();
        for table in tables.into_iter().take(POLICY_TABLES) {
            let destinations = self.destinations(table).await?;
            for rule in rules.iter_mut().filter(|rule| rule.table == Some(table)) {
                let of_family =
                    destinations.iter().filter(|net| Family::from(**net) == rule.family);
                rule.destinations = Some(of_family.copied().collect());
            }
        }
        Ok(rules)
    }

    /// The destinations of the routes in a routing table.
    async fn destinations(&mut self, number: u32) -> Result<Vec<IpNet>, KernelError> {
        let mut found = Vec::new();
        for family in Family::ALL {
            let request = || {
                Message::new(
                    RTM_GETROUTE,
                    0,
                    &route_header(family.pick(AF_INET, AF_INET6), 0, 0, 0, 0, 0),
                )
                .number(RTA_TABLE, number)
            };
            let all = self.requests.dump(
                "routes",
                request,
                Vec::new,
                |list: &mut Vec<IpNet>, message| {
                    let seen = route(message).filter(|seen| seen.table == number);
                    list.extend(seen.map(|seen| seen.net).filter(|_| list.len() < POLICY_ROUTES));
                },
            );
            match all.await {
                Ok(all) => found.extend(all),
                Err(error) if family.is_v6() => {
                    tracing::debug!(error = %error, "cannot read IPv6 routes of a table");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The neighbours that the kernel has resolved or tried to resolve.
    pub async fn neighbours(&mut self, index: u32) -> Result<Vec<Neighbour>, KernelError> {
        self.entries(index, |seen| {
            let mac = seen.mac.filter(|_| seen.answered());
            let is_asked_for = seen.unanswered() || mac.is_some();
            Some(Neighbour { address: seen.dst.filter(|_| is_asked_for)?, mac })
        })
        .await
    }

    /// The neighbours that have answered address resolution.
    pub async fn answered(&mut self, index: u32) -> Result<Vec<IpAddr>, KernelError> {
        self.entries(index, |seen| seen.dst.filter(|_| seen.answered())).await
    }

    async fn entries<T>(
        &mut self,
        index: u32,
        of: impl Fn(SeenNeighbor) -> Option<T>,
    ) -> Result<Vec<T>, KernelError> {
        let request = || {
            Message::new(RTM_GETNEIGH, 0, &neighbor_header(0, 0, 0, 0)).number(NDA_IFINDEX, index)
        };
        let all =
            self.requests.dump("neighbours", request, Vec::new, |list: &mut Vec<T>, message| {
                list.extend(neighbor(message).filter(|seen| seen.index == index).and_then(&of));
            });
        all.await
    }
}

/// Events about interfaces, addresses and, optionally, routes.
pub struct HostEvents {
    notices: Notices,
}

impl HostEvents {
    /// Opens a socket in the network namespace of the calling thread. Route events are optional,
    /// because every new pod changes routes.
    pub fn open(routes: bool) -> Result<Self, KernelError> {
        let of_routes = if routes { RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE } else { 0 };
        Ok(Self {
            notices: Notices::open(
                RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | of_routes,
            )?,
        })
    }

    /// Waits for an event, or until the kernel has dropped events.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn any(&mut self) {
        self.notices.until(|_| true).await;
    }

    /// Waits for an event that may change an interface: about the interface with the given index or
    /// name, about any address, or about an on-link route of the interface. Pod interfaces, which
    /// appear and disappear frequently, do not count.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn about(&mut self, index: u32, name: &str) {
        self.notices.until(|message| concerns(message, index, name)).await;
    }

    /// Drops all queued events.
    pub fn clear(&mut self) {
        self.notices.queued(|_| false);
    }
}

fn concerns(message: &Received<'_>, index: u32, name: &str) -> bool {
    match message.kind {
        RTM_NEWLINK | RTM_DELLINK => {
            wire::u32_at(message.body, 4) == Some(index) || name_in(message) == Some(name)
        }
        RTM_NEWROUTE | RTM_DELROUTE => {
            wire::attrs(message.body, RTMSG).all(|(kind, value)| match kind {
                RTA_OIF => wire::u32_at(value, 0) == Some(index),
                RTA_GATEWAY | RTA_VIA => false,
                _ => true,
            })
        }
        _ => true,
    }
}

fn name_in<'a>(message: &Received<'a>) -> Option<&'a str> {
    wire::attrs(message.body, IFINFOMSG)
        .find(|(kind, _)| *kind == IFLA_IFNAME)
        .map(|(_, value)| wire::text(value))
}

fn interface(message: &Received<'_>) -> Option<Interface> {
    let seen = link(message)?;
    let flags = wire::u32_at(message.body, 8)?;
    let mut out = Interface {
        index: seen.index,
        name: seen.name.as_str().to_owned(),
        up: seen.spec.up,
        carrier: flags & IFF_LOWER_UP != 0,
        loopback: flags & IFF_LOOPBACK != 0,
        noarp: flags & IFF_NOARP != 0,
        mtu: seen.spec.mtu,
        mac: seen.spec.mac,
        vxlan: if let LinkKind::Vxlan(vxlan) = &seen.spec.kind {
            Some((vxlan.vni, vxlan.port))
        } else {
            None
        },
        ..Interface::default()
    };
    for (kind, value) in wire::attrs(message.body, IFINFOMSG) {
        match kind {
            IFLA_MASTER => out.master = wire::u32_at(value, 0),
            IFLA_STATS64 => out.received = wire::u64_at(value, 0)?,
            IFLA_LINKINFO => {
                out.kind = wire::inside(value, IFLA_INFO_KIND)
                    .map(wire::text)
                    .unwrap_or_default()
                    .to_owned();
            }
            _ => {}
        }
    }
    Some(out)
}

/// The first field is the index of the interface.
fn address(message: &Received<'_>) -> Option<(u32, Address)> {
    if message.kind != RTM_NEWADDR {
        return None;
    }
    let (len, index) = (wire::u8_at(message.body, 1)?, wire::u32_at(message.body, 4)?);
    let (mut local, mut peer, mut flags) = (None, None, u32::from(wire::u8_at(message.body, 2)?));
    for (kind, value) in wire::attrs(message.body, IFADDRMSG) {
        match kind {
            // On a point-to-point link, the first is ours and the second is the peer's. Otherwise IPv6 has only the second.
            IFA_LOCAL => local = wire::ip(value),
            IFA_ADDRESS => peer = wire::ip(value),
            IFA_FLAGS => flags = wire::u32_at(value, 0)?,
            _ => {}
        }
    }
    let ip = local.or(peer)?;
    let has = |flag: u32| flags & flag != 0;
    let address = Address {
        net: IpNet::new(ip, len).ok()?,
        permanent: has(IFA_F_PERMANENT),
        deprecated: has(IFA_F_DEPRECATED),
        // The same bit has two names: IFA_F_SECONDARY for IPv4, IFA_F_TEMPORARY for IPv6.
        temporary: ip.is_ipv6() && has(IFA_F_TEMPORARY),
        tentative: has(IFA_F_TENTATIVE) && !has(IFA_F_OPTIMISTIC),
        dad_failed: has(IFA_F_DADFAILED),
    };
    Some((index, address))
}

fn policy_rule(message: &Received<'_>) -> Option<PolicyRule> {
    if message.kind != RTM_NEWRULE {
        return None;
    }
    let body = message.body;
    let (to_len, from_len) = (wire::u8_at(body, 1)?, wire::u8_at(body, 2)?);
    let (header_table, action, flags) =
        (u32::from(wire::u8_at(body, 4)?), wire::u8_at(body, 7)?, wire::u32_at(body, 8)?);
    // Rules that jump to another rule or do nothing make no decision.
    if !matches!(action, FR_ACT_TO_TBL | FR_ACT_BLACKHOLE..=FR_ACT_PROHIBIT) {
        return None;
    }
    let family = match wire::u8_at(body, 0)? {
        AF_INET => Family::V4,
        AF_INET6 => Family::V6,
        _ => return None,
    };
    let mut rule = PolicyRule {
        // The type of service is also a condition.
        conditional: wire::u8_at(body, 3)? != 0,
        inverted: flags & FIB_RULE_INVERT != 0,
        table: (action == FR_ACT_TO_TBL).then_some(header_table),
        ..PolicyRule::of_all(family, 0, header_table)
    };
    for (kind, value) in wire::attrs(body, FIB_RULE) {
        match kind {
            FRA_DST => rule.to = IpNet::new(wire::ip(value)?, to_len).ok(),
            FRA_SRC => rule.from = IpNet::new(wire::ip(value)?, from_len).ok(),
            FRA_IIFNAME => rule.incoming = Some(wire::text(value).to_owned()),
            FRA_PRIORITY => rule.priority = wire::u32_at(value, 0)?,
            FRA_TABLE if rule.table.is_some() => rule.table = wire::u32_at(value, 0),
            FRA_FWMARK | FRA_FWMASK => rule.conditional |= wire::u32_at(value, 0)? != 0,
            // The rule ignores the table's default route. Whether the table has a more specific route is not looked up.
            FRA_SUPPRESS_PREFIXLEN => rule.conditional |= wire::u32_at(value, 0)? != u32::MAX,
            FRA_L3MDEV => rule.conditional |= wire::u8_at(value, 0)? != 0,
            FRA_OIFNAME | FRA_UID_RANGE | FRA_IP_PROTO | FRA_SPORT_RANGE | FRA_DPORT_RANGE => {
                rule.conditional = true;
            }
            _ => {}
        }
    }
    Some(rule)
}

fn main_route(message: &Received<'_>) -> Option<Route> {
    let seen = route(message)?;
    let is_copy = wire::u32_at(message.body, 8)? & RTM_F_CLONED != 0;
    if seen.table != u32::from(RT_TABLE_MAIN) || is_copy {
        return None;
    }
    let paths = wire::attrs(message.body, RTMSG)
        .find(|(kind, _)| *kind == RTA_MULTIPATH)
        .map(|(_, value)| paths(value))
        .unwrap_or_default();
    Some(Route {
        to: seen.net,
        via: seen.spec.via,
        index: Some(seen.oif).filter(|index| *index != 0),
        paths,
        kind: seen.spec.kind,
        protocol: seen.spec.protocol,
        metric: seen.metric,
    })
}

/// A sequence of struct rtnexthop.
fn paths(mut rest: &[u8]) -> Vec<Path> {
    let mut paths = Vec::new();
    while let Some(hop) = wire::u16_at(rest, 0)
        .and_then(|len| rest.get(..usize::from(len)))
        .filter(|hop| hop.len() >= RTNEXTHOP)
    {
        let mut via = None;
        for (kind, value) in wire::attrs(hop, RTNEXTHOP) {
            match kind {
                RTA_GATEWAY => via = wire::ip(value),
                RTA_VIA => via = value.get(RTVIA_ADDR..).and_then(wire::ip),
                _ => {}
            }
        }
        paths.push(Path { via, index: wire::u32_at(hop, 4) });
        rest = rest.get(hop.len().next_multiple_of(4)..).unwrap_or_default();
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::RouteKind;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Encodes a message and decodes it with `each`, as if the kernel had sent it.
    fn read<T>(message: Message, each: impl Fn(&Received<'_>) -> T) -> T {
        let bytes = message.finish(1);
        let received = wire::messages(&bytes).next().unwrap();
        each(&received)
    }

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
    fn policy_rule_is_about_the_packets_that_it_names() {
        // linux/fib_rules.h: the program that added the rule, which is not a condition.
        const FRA_PROTOCOL: u16 = 21;
        let all_ones = u32::MAX;
        let plain = |priority: u32| {
            Message::new(RTM_NEWRULE, 0, &[AF_INET, 16, 0, 0, 99, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0])
                .number(FRA_PRIORITY, priority)
                .number(FRA_TABLE, 99)
                .number(FRA_SUPPRESS_PREFIXLEN, all_ones)
                .attr(FRA_PROTOCOL, &[3])
        };
        let rule = read(plain(100).attr(FRA_DST, &[10, 244, 0, 0]), policy_rule).unwrap();
        let is_about = |rule: &PolicyRule, to: &str, by: Option<&str>| {
            rule.is_about(ip("10.244.1.2"), ip(to), by)
        };
        assert!(is_about(&rule, "10.244.2.2", None) && !is_about(&rule, "192.0.2.1", None));
        assert!(!rule.is_standard());
        assert_eq!(rule.to_string(), "100: from all to 10.244.0.0/16 lookup 99");

        // A rule as wg-quick adds it: packets without the mark enter the tunnel.
        let mut header = [AF_INET, 0, 0, 0, 99, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        header[8..].copy_from_slice(&FIB_RULE_INVERT.to_ne_bytes());
        let message = Message::new(RTM_NEWRULE, 0, &header)
            .number(FRA_PRIORITY, 32764)
            .number(FRA_TABLE, 51820)
            .number(FRA_FWMARK, 51820)
            .number(FRA_FWMASK, all_ones);
        let rule = read(message, policy_rule).unwrap();
        assert!(is_about(&rule, "10.244.2.2", Some("cni0")));
        assert_eq!(rule.to_string(), "32764: not from all lookup 51820");

        let by_bridge = Message::new(RTM_NEWRULE, 0, &[AF_INET, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0])
            .text(FRA_IIFNAME, "cni0");
        let rule = read(by_bridge, policy_rule).unwrap();
        assert!(
            is_about(&rule, "10.244.2.2", Some("cni0"))
                && !is_about(&rule, "10.244.2.2", Some("eth0"))
        );
        assert_eq!(rule.table, None, "it drops");

        // The rule ignores the default route, so it is not known where the rule leads.
        let partly =
            Message::new(RTM_NEWRULE, 0, &[AF_INET, 0, 0, 0, 254, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0])
                .number(FRA_SUPPRESS_PREFIXLEN, 0);
        let rule = read(partly, policy_rule).unwrap();
        assert!(!is_about(&rule, "10.244.2.2", None));
        assert_eq!(read(Message::new(RTM_NEWROUTE, 0, &header), policy_rule), None);
    }

    #[test]
    fn multipath_route_has_each_of_its_paths() {
        let inet6 = [
            &u16::from(AF_INET6).to_ne_bytes()[..],
            &"fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        ]
        .concat();
        let hops = [hop(2, RTA_GATEWAY, &[192, 0, 2, 1]), hop(3, RTA_VIA, &inet6)].concat();
        let header = route_header(AF_INET, 0, 16, 0, RTN_UNICAST, RT_TABLE_MAIN);
        let message = || {
            Message::new(RTM_NEWROUTE, 0, &header)
                .number(RTA_PRIORITY, 7)
                .attr(RTA_MULTIPATH, &hops)
        };
        let route = read(message(), main_route).unwrap();
        assert!(
            route.is_default()
                && route.carries()
                && (route.via, route.index, route.link()) == (None, None, None),
            "{route:?}"
        );
        assert_eq!((route.protocol, route.metric), (16, 7));
        let paths: Vec<_> =
            route.split().into_iter().map(|path| (path.via, path.index, path.metric)).collect();
        assert_eq!(paths, [(Some(ip("192.0.2.1")), Some(2), 7), (Some(ip("fe80::1")), Some(3), 7)]);
        assert_eq!(read(message().number(RTA_TABLE, 100), main_route), None, "another table");
    }

    #[test]
    fn route_without_a_gateway_is_a_link_unless_it_drops_packets() {
        let of = |kind| {
            let header = route_header(AF_INET, 24, 2, 0, kind, RT_TABLE_MAIN);
            read(
                Message::new(RTM_NEWROUTE, 0, &header)
                    .ip(RTA_DST, ip("192.0.2.0"))
                    .number(RTA_OIF, 4),
                main_route,
            )
            .unwrap()
        };
        assert_eq!(of(RTN_UNICAST).link(), Some(4));
        let unreachable = of(RTN_UNREACHABLE);
        assert_eq!(
            (unreachable.link(), unreachable.kind, unreachable.carries()),
            (None, RouteKind::Unreachable, false)
        );
    }

    #[test]
    fn address_has_its_flags_and_the_local_end() {
        let of = |family, flags: u32| {
            Message::new(RTM_NEWADDR, 0, &address_header(family, 24, 3)).number(IFA_FLAGS, flags)
        };
        let (index, found) = read(
            of(AF_INET, IFA_F_PERMANENT | IFA_F_TEMPORARY)
                .ip(IFA_ADDRESS, ip("192.0.2.9"))
                .ip(IFA_LOCAL, ip("192.0.2.1")),
            address,
        )
        .unwrap();
        assert_eq!(
            (index, found),
            (3, Address::plain("192.0.2.1/24".parse().unwrap())),
            "for IPv4, IFA_F_TEMPORARY means secondary"
        );
        let v6 = |flags| {
            read(of(AF_INET6, flags).ip(IFA_ADDRESS, ip("2001:db8::1")), address).unwrap().1
        };
        let state = |flags| {
            (v6(flags).temporary, v6(flags).tentative, v6(flags).deprecated, v6(flags).dad_failed)
        };
        assert_eq!(state(IFA_F_TEMPORARY | IFA_F_DEPRECATED), (true, false, true, false));
        assert_eq!(state(IFA_F_TENTATIVE | IFA_F_DADFAILED), (false, true, false, true));
        assert_eq!(
            state(IFA_F_TENTATIVE | IFA_F_OPTIMISTIC),
            (false, false, false, false),
            "an optimistic address is usable"
        );
    }

    #[test]
    fn event_concerns_an_interface_by_index_name_or_link_route() {
        let of = |message| read(message, |received| concerns(received, 2, "eth0"));
        let link = |index, name| {
            Message::new(RTM_NEWLINK, 0, &super::super::header::link_header(index))
                .text(IFLA_IFNAME, name)
        };
        assert!(of(link(2, "wan0")) && of(link(9, "eth0")) && !of(link(9, "veth1")));
        let route = || {
            Message::new(
                RTM_DELROUTE,
                0,
                &route_header(AF_INET, 24, 2, 0, RTN_UNICAST, RT_TABLE_MAIN),
            )
        };
        assert!(of(route().number(RTA_OIF, 2)) && !of(route().number(RTA_OIF, 9)));
        assert!(!of(route().number(RTA_OIF, 2).ip(RTA_GATEWAY, ip("192.0.2.1"))));
        assert!(of(Message::new(RTM_DELADDR, 0, &address_header(AF_INET, 24, 9))));
    }

    #[tokio::test]
    async fn this_host_has_a_loopback_interface_and_a_route_to_itself() {
        let mut reader = HostReader::open().unwrap();
        let interfaces = reader.interfaces().await.unwrap();
        let lo = interfaces.iter().find(|interface| interface.loopback).unwrap();
        let here = ip("127.0.0.1");
        assert!(
            lo.owns(here)
                && lo.up
                && lo.carrier
                && lo.kind.is_empty()
                && lo.mac.unwrap().0 == [0; 6],
            "{lo:?}"
        );
        assert!(
            lo.received > 0 && interfaces.is_sorted_by_key(|interface| interface.index),
            "{lo:?}"
        );
        let found = reader.look_up(&[here, ip("255.255.255.255"), here]).await;
        assert_eq!(
            found
                .iter()
                .filter(|answer| answer.as_ref().is_ok_and(|answer| answer.index == lo.index))
                .count(),
            2,
            "{found:?}"
        );
        assert_eq!(reader.answered(lo.index).await.unwrap(), Vec::<IpAddr>::new());
        let all = reader.routes(|_| true).await.unwrap();
        assert_eq!(
            reader.routes(Route::is_default).await.unwrap(),
            all.into_iter().filter(Route::is_default).collect::<Vec<_>>()
        );
        let mut events = HostEvents::open(true).unwrap();
        events.clear();
    }

    proptest! {
        #[test]
        fn garbage_never_panics(kind in 16u16..31, body in proptest::collection::vec(any::<u8>(), 0..120)) {
            let message = Received { kind, flags: 0, sequence: 1, body: &body };
            let _ = (interface(&message), address(&message), main_route(&message), paths(&body), concerns(&message, 1, "eth0"));
        }
    }
}
