//! Reads this host's interfaces, routes and neighbours of any origin.

use crate::host::{
    Address as HostAddress, Forwarded, Interface, Neighbour, PolicyRule, Route as HostRoute,
    RouteAnswer, RouteError,
};
use crate::names::Mac;
use crate::object::link::vxlan;
use crate::object::route::RouteKind;
use ipnet::IpNet;
use netlink::address::{Address, addresses_of_link};
use netlink::header::rule_header;
use netlink::link::{Link, all_links};
use netlink::neighbor::{Neighbor, neighbors_of_link};
use netlink::route::{Route, forwarded_route, route_to, routes_of_table};
use netlink::uapi::*;
use netlink::{Client, KernelError, Message, Query, Received, RequestError, family_number, wire};
use std::net::IpAddr;
use types::Family;

/// At most so many policy routing tables are read, and at most so many routes of each.
const POLICY_TABLES: usize = 4;
const POLICY_ROUTES: usize = 1024;

/// Ordered by index, without their addresses.
pub fn read_links(client: &mut Client) -> Result<Vec<Interface>, KernelError> {
    let mut interfaces = client
        .dump(&all_links(), |message| Some(interface_without_addresses(&Link::decode(message)?)))?;
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

/// Ordered by index, with their addresses.
pub fn read_interfaces(client: &mut Client) -> Result<Vec<Interface>, KernelError> {
    let mut interfaces = read_links(client)?;
    for address in client.dump(&addresses_of_link(0, 0), Address::decode)? {
        if let Some(interface) =
            interfaces.iter_mut().find(|interface| interface.index == address.index)
        {
            interface.addresses.push(host_address(&address));
        }
    }
    Ok(interfaces)
}

/// The routes of the main table that `keep` accepts, IPv4 first.
pub fn read_routes(
    client: &mut Client,
    keep: impl Fn(&HostRoute) -> bool,
) -> Result<Vec<HostRoute>, KernelError> {
    dump_both_families(
        client,
        |family| routes_of_table(family_number(family), u32::from(RT_TABLE_MAIN)),
        |message| host_route(Route::decode(message)?).filter(&keep),
        HostRoute::family,
        usize::MAX,
    )
}

/// IPv4 first. A kernel without IPv6 refuses to list IPv6 objects, so that failure is only logged. It may
/// also list those of all other families instead. At most `most` of each family.
fn dump_both_families<T>(
    client: &mut Client,
    query: impl Fn(Family) -> Query,
    decode: impl Fn(&Received<'_>) -> Option<T>,
    family_of: impl Fn(&T) -> Family,
    most: usize,
) -> Result<Vec<T>, KernelError> {
    let mut found = Vec::new();
    for family in Family::ALL {
        let all = client.fold_dump(&query(family), Vec::new, |list: &mut Vec<T>, message| {
            if list.len() < most {
                list.extend(decode(message).filter(|object| family_of(object) == family));
            }
        });
        match all {
            // Moves the list instead of copying it: it may have ten thousand routes.
            Ok(all) if found.is_empty() => found = all,
            Ok(all) => found.extend(all),
            Err(error) if family.is_v6() => {
                tracing::debug!(error = %error, "cannot read IPv6 objects");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The packets are this host's. The results are in the order of `targets`.
pub fn look_up_routes(
    client: &mut Client,
    targets: &[IpAddr],
) -> Vec<Result<RouteAnswer, RouteError>> {
    let queries = targets.iter().map(|to| route_to(*to, 0));
    look_up_each(client, queries.collect())
}

/// The results are in the order of `packets`.
pub fn look_up_forwarded_routes(
    client: &mut Client,
    packets: &[Forwarded],
) -> Vec<Result<RouteAnswer, RouteError>> {
    let queries =
        packets.iter().map(|packet| forwarded_route(packet.from, packet.to, packet.incoming));
    look_up_each(client, queries.collect())
}

fn look_up_each(
    client: &mut Client,
    queries: Vec<Message>,
) -> Vec<Result<RouteAnswer, RouteError>> {
    let found = client.look_up(queries, Route::decode);
    let answer = |found: Result<Option<Route>, RequestError>| match found {
        Ok(Some(route)) if route.index == 0 => Err(RouteError::WithoutInterface),
        Ok(Some(route)) => Ok(RouteAnswer { index: route.index, source: route.source }),
        Ok(None) | Err(RequestError::Lost) => Err(RouteError::Unanswered),
        Err(RequestError::Refused { errno, words }) => Err(RouteError::Refused { errno, words }),
    };
    found.into_iter().map(answer).collect()
}

/// IPv4 first, in the order in which the kernel evaluates them.
pub fn read_policy_rules(client: &mut Client) -> Result<Vec<PolicyRule>, KernelError> {
    let query = |family| {
        let header = rule_header(family_number(family));
        Query::new("policy routing rules", Message::new(RTM_GETRULE, 0, &header))
    };
    let mut rules =
        dump_both_families(client, query, decode_policy_rule, |rule| rule.family, usize::MAX)?;
    let mut tables: Vec<u32> = rules
        .iter()
        .filter(|rule| !rule.is_standard() && !rule.conditional | rule.inverted)
        .filter_map(|rule| rule.table)
        .collect();
    tables.sort_unstable();
    tables.dedup();
    for table in tables.into_iter().take(POLICY_TABLES) {
        let destinations = read_destinations(client, table)?;
        for rule in rules.iter_mut().filter(|rule| rule.table == Some(table)) {
            let of_family = destinations.iter().filter(|net| Family::from(**net) == rule.family);
            rule.destinations = Some(of_family.copied().collect());
        }
    }
    Ok(rules)
}

/// The destinations of the first routes in a routing table.
fn read_destinations(client: &mut Client, table: u32) -> Result<Vec<IpNet>, KernelError> {
    dump_both_families(
        client,
        |family| routes_of_table(family_number(family), table),
        |message| Some(Route::decode(message).filter(|route| route.table == table)?.net),
        |net| Family::from(net),
        POLICY_ROUTES,
    )
}

/// The neighbours that the kernel has resolved or tried to resolve.
pub fn read_neighbours(client: &mut Client, index: u32) -> Result<Vec<Neighbour>, KernelError> {
    client.dump(&neighbors_of_link(index, 0), |message| {
        let seen = Neighbor::decode(message).filter(|seen| seen.index == index)?;
        let mac = seen.mac.filter(|_| seen.is_answered()).map(Mac);
        let is_asked_for = seen.is_unanswered() || mac.is_some();
        Some(Neighbour { address: seen.destination.filter(|_| is_asked_for)?, mac })
    })
}

/// The neighbours that have answered address resolution.
pub fn read_answered_neighbours(
    client: &mut Client,
    index: u32,
) -> Result<Vec<IpAddr>, KernelError> {
    client.dump(&neighbors_of_link(index, 0), |message| {
        let seen = Neighbor::decode(message).filter(|seen| seen.index == index)?;
        seen.destination.filter(|_| seen.is_answered())
    })
}

/// The groups of events about interfaces and addresses. Those of routes are more frequent: every new pod
/// changes routes.
pub const INTERFACE_GROUPS: u32 = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
pub const ROUTE_GROUPS: u32 = RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE;

/// True for an event that may change an interface: about the interface with the given index or name, about
/// any address, or about an on-link route of the interface. Pod interfaces, which appear and disappear
/// frequently, do not count.
#[must_use]
pub fn may_change_interface(message: &Received<'_>, index: u32, name: &str) -> bool {
    match message.kind {
        RTM_NEWLINK | RTM_DELLINK => {
            wire::u32_at(message.body, 4) == Some(index)
                || Link::decode(message).is_some_and(|link| link.name == name)
        }
        RTM_NEWROUTE | RTM_DELROUTE => Route::decode(message)
            .is_none_or(|route| route.via.is_none() && (route.index == index || route.index == 0)),
        _ => true,
    }
}

fn interface_without_addresses(link: &Link<'_>) -> Interface {
    let vxlan = (link.kind == vxlan::KIND).then(|| vxlan::decode(link.data));
    Interface {
        index: link.index,
        name: link.name.to_owned(),
        kind: link.kind.to_owned(),
        up: link.has(IFF_UP),
        carrier: link.has(IFF_LOWER_UP),
        loopback: link.has(IFF_LOOPBACK),
        noarp: link.has(IFF_NOARP),
        master: link.master,
        mtu: link.mtu,
        mac: link.mac.map(Mac),
        vxlan: vxlan.map(|vxlan| (vxlan.vni, vxlan.port)),
        received: link.counters.map_or(0, |counters| counters.received.packets),
        addresses: Vec::new(),
    }
}

fn host_address(address: &Address) -> HostAddress {
    HostAddress {
        net: address.net,
        permanent: address.has(IFA_F_PERMANENT),
        deprecated: address.has(IFA_F_DEPRECATED),
        // The same bit has two names: IFA_F_SECONDARY for IPv4, IFA_F_TEMPORARY for IPv6.
        temporary: address.net.addr().is_ipv6() && address.has(IFA_F_TEMPORARY),
        tentative: address.has(IFA_F_TENTATIVE) && !address.has(IFA_F_OPTIMISTIC),
        dad_failed: address.has(IFA_F_DADFAILED),
    }
}

/// `None` for a route of another table.
fn host_route(route: Route) -> Option<HostRoute> {
    route.is_of_main_table().then(|| HostRoute {
        to: route.net,
        via: route.via,
        index: Some(route.index).filter(|index| *index != 0),
        kind: RouteKind::of_number(route.kind),
        protocol: route.protocol,
        metric: route.metric,
        paths: route.paths,
    })
}

fn decode_policy_rule(message: &Received<'_>) -> Option<PolicyRule> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Path;
    use crate::object::route::RouteKind;
    use netlink::header::{address_header, link_header, route_header};
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn read<T>(message: Message, each: impl Fn(&Received<'_>) -> T) -> T {
        message.read_back(|received| Some(each(received))).remove(0)
    }

    fn index_and_address(message: &Received<'_>) -> Option<(u32, HostAddress)> {
        let address = Address::decode(message)?;
        Some((address.index, host_address(&address)))
    }

    fn main_route(message: &Received<'_>) -> Option<HostRoute> {
        host_route(Route::decode(message)?)
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
        let rule = read(plain(100).attr(FRA_DST, &[10, 244, 0, 0]), decode_policy_rule).unwrap();
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
        let rule = read(message, decode_policy_rule).unwrap();
        assert!(is_about(&rule, "10.244.2.2", Some("cni0")));
        assert_eq!(rule.to_string(), "32764: not from all lookup 51820");

        let by_bridge = Message::new(RTM_NEWRULE, 0, &[AF_INET, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0])
            .text(FRA_IIFNAME, "cni0");
        let rule = read(by_bridge, decode_policy_rule).unwrap();
        assert!(
            is_about(&rule, "10.244.2.2", Some("cni0"))
                && !is_about(&rule, "10.244.2.2", Some("eth0"))
        );
        assert_eq!(rule.table, None, "it drops");

        // The rule ignores the default route, so it is not known where the rule leads.
        let partly =
            Message::new(RTM_NEWRULE, 0, &[AF_INET, 0, 0, 0, 254, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0])
                .number(FRA_SUPPRESS_PREFIXLEN, 0);
        let rule = read(partly, decode_policy_rule).unwrap();
        assert!(!is_about(&rule, "10.244.2.2", None));
        assert_eq!(read(Message::new(RTM_NEWROUTE, 0, &header), decode_policy_rule), None);
    }

    #[test]
    fn multipath_route_is_split_into_its_paths() {
        let header = route_header(AF_INET, 0, 16, 0, RTN_UNICAST, RT_TABLE_MAIN);
        let message = || Message::new(RTM_NEWROUTE, 0, &header).number(RTA_PRIORITY, 7);
        let mut route = read(message(), main_route).unwrap();
        route.paths = [2, 3].map(|index| Path { via: None, index: Some(index) }).into();
        assert!(route.is_default() && route.carries() && route.link().is_none(), "{route:?}");
        let paths: Vec<_> =
            route.split().into_iter().map(|path| (path.index, path.metric)).collect();
        assert_eq!(paths, [(Some(2), 7), (Some(3), 7)]);
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
            index_and_address,
        )
        .unwrap();
        assert_eq!(
            (index, found),
            (3, HostAddress::plain("192.0.2.1/24".parse().unwrap())),
            "for IPv4, IFA_F_TEMPORARY means secondary"
        );
        let v6 = |flags| {
            read(of(AF_INET6, flags).ip(IFA_ADDRESS, ip("2001:db8::1")), index_and_address)
                .unwrap()
                .1
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
        let of = |message| read(message, |received| may_change_interface(received, 2, "eth0"));
        let link =
            |index, name| Message::new(RTM_NEWLINK, 0, &link_header(index)).text(IFLA_IFNAME, name);
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

    #[test]
    fn this_host_has_a_loopback_interface_and_a_route_to_itself() {
        let mut client = Client::open().unwrap();
        let interfaces = read_interfaces(&mut client).unwrap();
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
        let found = look_up_routes(&mut client, &[here, ip("255.255.255.255"), here]);
        assert_eq!(
            found
                .iter()
                .filter(|answer| answer.as_ref().is_ok_and(|answer| answer.index == lo.index))
                .count(),
            2,
            "{found:?}"
        );
        assert_eq!(read_answered_neighbours(&mut client, lo.index).unwrap(), Vec::<IpAddr>::new());
        let all = read_routes(&mut client, |_| true).unwrap();
        assert_eq!(
            read_routes(&mut client, HostRoute::is_default).unwrap(),
            all.into_iter().filter(HostRoute::is_default).collect::<Vec<_>>()
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(kind in 16u16..35, body in proptest::collection::vec(any::<u8>(), 0..120)) {
            let message = Received { kind, flags: 0, sequence: 1, body: &body };
            let _ = (index_and_address(&message), main_route(&message), decode_policy_rule(&message), may_change_interface(&message, 1, "eth0"));
        }
    }
}
