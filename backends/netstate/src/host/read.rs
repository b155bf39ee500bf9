//! Reads this host's interfaces, routes and neighbours of any origin.

use crate::host::{Interface, Neighbour, PolicyRule, RouteError};
use crate::names::Mac;
use crate::object::link::vxlan;
use ipnet::IpNet;
use netlink::address::{Address, addresses_of_link};
use netlink::header::lookup_header;
use netlink::link::{Link, all_links};
use netlink::neighbor::dump_neighbors;
use netlink::route::{Route, routes_of_table};
use netlink::uapi::*;
use netlink::{Client, KernelError, Message, Query, Received, RequestError, wire};
use std::collections::BTreeSet;
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
            interface.addresses.push(address);
        }
    }
    Ok(interfaces)
}

/// The routes of the main table that `keep` accepts, IPv4 first.
pub fn read_routes(
    client: &mut Client,
    keep: impl Fn(&Route) -> bool,
) -> Result<Vec<Route>, KernelError> {
    dump_both_families(
        client,
        |family| routes_of_table(family, RT_TABLE_MAIN),
        |message| Route::decode(message).filter(|route| route.is_of_main_table() && keep(route)),
        usize::MAX,
    )
}

/// IPv4 first. A kernel without IPv6 refuses to list IPv6 objects, so that failure is only logged. It may
/// also list those of all other families instead. At most `most` of each family.
fn dump_both_families<T>(
    client: &mut Client,
    query: impl Fn(u8) -> Query,
    decode: impl Fn(&Received<'_>) -> Option<T>,
    most: usize,
) -> Result<Vec<T>, KernelError> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let all = client.fold_dump(&query(family), Vec::new, |list: &mut Vec<T>, message| {
            // The messages of routes and of rules begin with the family.
            if list.len() < most && wire::u8_at(message.body, 0) == Some(family) {
                list.extend(decode(message));
            }
        });
        match all {
            // Moves the list instead of copying it: it may have ten thousand routes.
            Ok(all) if found.is_empty() => found = all,
            Ok(all) => found.extend(all),
            Err(error) if family == AF_INET6 => {
                tracing::debug!(error = %error, "cannot read IPv6 objects");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The results are in the order of the requests, which are of [`route_to`] and [`forwarded_route`].
/// For this host's own addresses, the route leads to the loopback interface.
///
/// [`route_to`]: netlink::route::route_to
/// [`forwarded_route`]: netlink::route::forwarded_route
pub fn look_up_routes(
    client: &mut Client,
    requests: impl Iterator<Item = Message>,
) -> Vec<Result<Route, RouteError>> {
    let found = client.look_up(requests.collect(), Route::decode);
    let answer = |found: Result<Option<Route>, RequestError>| match found {
        Ok(Some(route)) if route.index == 0 => Err(RouteError::WithoutInterface),
        Ok(Some(route)) => Ok(route),
        Ok(None) | Err(RequestError::Lost) => Err(RouteError::Unanswered),
        Err(RequestError::Refused { errno, words }) => Err(RouteError::Refused { errno, words }),
    };
    found.into_iter().map(answer).collect()
}

/// IPv4 first, in the order in which the kernel evaluates them.
pub fn read_policy_rules(client: &mut Client) -> Result<Vec<PolicyRule>, KernelError> {
    let query = |family| {
        let header = lookup_header(family, 0, 0, 0);
        Query::new("policy routing rules", Message::new(RTM_GETRULE, 0, &header))
    };
    let mut rules = dump_both_families(client, query, decode_policy_rule, usize::MAX)?;
    let tables: BTreeSet<u32> = rules
        .iter()
        .filter(|rule| !rule.is_standard() && !rule.conditional | rule.inverted)
        .filter_map(|rule| rule.table)
        .collect();
    for table in tables.into_iter().take(POLICY_TABLES) {
        let destinations = read_destinations(client, table)?;
        for rule in rules.iter_mut().filter(|rule| rule.table == Some(table)) {
            let of_family = destinations.iter().filter(|net| Family::from(**net) == rule.family);
            rule.destinations = of_family.copied().collect();
        }
    }
    Ok(rules)
}

/// The destinations of the first routes in a routing table.
fn read_destinations(client: &mut Client, table: u32) -> Result<Vec<IpNet>, KernelError> {
    dump_both_families(
        client,
        |family| routes_of_table(family, table),
        |message| Some(Route::decode(message).filter(|route| route.table == table)?.net),
        POLICY_ROUTES,
    )
}

/// The neighbours that the kernel has resolved or tried to resolve.
pub fn read_neighbours(client: &mut Client, index: u32) -> Result<Vec<Neighbour>, KernelError> {
    dump_neighbors(client, index, 0, |seen| {
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
    dump_neighbors(client, index, 0, |seen| seen.destination.filter(|_| seen.is_answered()))
}

/// The groups of events about interfaces and addresses. Those of routes are more frequent: every new pod
/// changes routes.
pub const INTERFACE_GROUPS: i32 = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
pub const ROUTE_GROUPS: i32 = RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE;

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
        family,
        priority: 0,
        from: None,
        to: None,
        incoming: None,
        // The type of service is also a condition.
        conditional: wire::u8_at(body, 3)? != 0,
        inverted: flags & FIB_RULE_INVERT != 0,
        table: (action == FR_ACT_TO_TBL).then_some(header_table),
        destinations: Vec::new(),
    };
    for (kind, value) in wire::read_attrs(body, FIB_RULE) {
        match kind {
            FRA_DST => rule.to = IpNet::new(wire::read_ip(value)?, to_len).ok(),
            FRA_SRC => rule.from = IpNet::new(wire::read_ip(value)?, from_len).ok(),
            FRA_IIFNAME => rule.incoming = Some(wire::read_text(value).to_owned()),
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
    use crate::host::{is_usable, unusable_state};
    use netlink::header::{address_header, link_header, route_header};
    use netlink::route::{Path, RouteKind, route_to};
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn read<T>(message: Message, each: impl Fn(&Received<'_>) -> T) -> T {
        message.read_back(|received| Some(each(received))).remove(0)
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
        let header = route_header(AF_INET, 0, 16, 0, RTN_UNICAST, 0);
        let message = || Message::new(RTM_NEWROUTE, 0, &header).number(RTA_PRIORITY, 7);
        let mut route = read(message(), Route::decode).unwrap();
        assert!(route.is_of_main_table());
        route.paths = [2, 3].map(|index| Path { via: None, index }).into();
        assert!(route.is_default() && route.carries() && route.link().is_none(), "{route:?}");
        let paths: Vec<_> =
            route.split().into_iter().map(|path| (path.index, path.metric)).collect();
        assert_eq!(paths, [(2, 7), (3, 7)]);
        let other = read(message().number(RTA_TABLE, 100), Route::decode).unwrap();
        assert!(!other.is_of_main_table(), "another table");
    }

    #[test]
    fn route_without_a_gateway_is_a_link_unless_it_drops_packets() {
        let of = |kind| {
            let header = route_header(AF_INET, 24, 2, 0, kind, 0);
            read(
                Message::new(RTM_NEWROUTE, 0, &header)
                    .ip(RTA_DST, ip("192.0.2.0"))
                    .number(RTA_OIF, 4),
                Route::decode,
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
            Message::new(RTM_NEWADDR, 0, &address_header(family, 24, 0, 3)).number(IFA_FLAGS, flags)
        };
        let found = read(
            of(AF_INET, IFA_F_PERMANENT | IFA_F_TEMPORARY)
                .ip(IFA_ADDRESS, ip("192.0.2.9"))
                .ip(IFA_LOCAL, ip("192.0.2.1")),
            Address::decode,
        )
        .unwrap();
        assert_eq!((found.index, found.net), (3, "192.0.2.1/24".parse().unwrap()));
        assert!(found.has(IFA_F_PERMANENT) && is_usable(&found));
        assert!(!found.is_temporary(), "for IPv4, IFA_F_TEMPORARY means secondary");
        let v6 = |flags| {
            read(of(AF_INET6, flags).ip(IFA_ADDRESS, ip("2001:db8::1")), Address::decode).unwrap()
        };
        for (flags, state) in [
            (IFA_F_TEMPORARY | IFA_F_DEPRECATED, "deprecated"),
            (IFA_F_TENTATIVE, "still tentative"),
            (IFA_F_TENTATIVE | IFA_F_DADFAILED, "another host has this address (dadfailed)"),
        ] {
            let address = v6(flags);
            assert_eq!((is_usable(&address), unusable_state(&address)), (false, state));
            assert_eq!(address.is_temporary(), flags & IFA_F_TEMPORARY != 0);
        }
        assert!(is_usable(&v6(IFA_F_TENTATIVE | IFA_F_OPTIMISTIC)), "optimistic");
    }

    #[test]
    fn event_concerns_an_interface_by_index_name_or_link_route() {
        let of = |message| read(message, |received| may_change_interface(received, 2, "eth0"));
        let link =
            |index, name| Message::new(RTM_NEWLINK, 0, &link_header(index)).text(IFLA_IFNAME, name);
        assert!(of(link(2, "wan0")) && of(link(9, "eth0")) && !of(link(9, "veth1")));
        let route =
            || Message::new(RTM_DELROUTE, 0, &route_header(AF_INET, 24, 2, 0, RTN_UNICAST, 0));
        assert!(of(route().number(RTA_OIF, 2)) && !of(route().number(RTA_OIF, 9)));
        assert!(!of(route().number(RTA_OIF, 2).ip(RTA_GATEWAY, ip("192.0.2.1"))));
        assert!(of(Message::new(RTM_DELADDR, 0, &address_header(AF_INET, 24, 0, 9))));
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
        let targets = [here, ip("255.255.255.255"), here];
        let found = look_up_routes(&mut client, targets.iter().map(|to| route_to(*to, 0)));
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
            read_routes(&mut client, Route::is_default).unwrap(),
            all.into_iter().filter(Route::is_default).collect::<Vec<_>>()
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(kind in 16u16..35, body in proptest::collection::vec(any::<u8>(), 0..120)) {
            let message = Received { kind, flags: 0, sequence: 1, body: &body };
            let _ = (decode_policy_rule(&message), may_change_interface(&message, 1, "eth0"));
        }
    }
}
