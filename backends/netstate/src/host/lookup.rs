//! Looks up the path of one packet in the kernel, without a cache: the route, and the state of the next hop.

use crate::names::{LinkName, Mac};
use crate::netlink::wireguard;
use crate::object::wireguard_peer::SeenPeer;
use ipnet::IpNet;
use netlink::link::{link_of_index, link_of_name, look_up_links};
use netlink::neighbor::dump_neighbors;
use netlink::route::{Route, RouteKind, route_to, routes_of_table};
use netlink::uapi::*;
use netlink::{Client, KernelError, family_number};
use std::net::IpAddr;
use types::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// With the source address that the kernel selects for this host's packets.
    pub route: Route,
    /// Empty if the route has no interface.
    pub dev: LinkName,
}

/// What happens to a packet of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Sent(Hop),
    /// A route drops the packet; `None` if the lookup did not find it.
    Dropped(Option<Hop>),
    /// ENETUNREACH: no route matches the destination.
    NoRoute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    Known(Mac),
    /// No host has answered, so the kernel does not know the MAC.
    Silent,
    /// The address has no entry.
    Absent,
}

/// The route of this host's packets to an address, like `ip route get`.
pub fn look_up_fate(client: &mut Client, to: IpAddr) -> Result<Fate, KernelError> {
    let failed = |why| KernelError::new(format!("look up the route to {to}"), why);
    // For IPv6 the kernel always returns the table, and refuses requests for it.
    let table = if to.is_ipv4() { RTM_F_LOOKUP_TABLE } else { 0 };
    let queries = vec![route_to(to, table), route_to(to, table | RTM_F_FIB_MATCH)];
    // The result for the packet, and the route that matched.
    let mut found = client.look_up(queries, Route::decode).into_iter();
    let way = match found.next().transpose() {
        Ok(way) => way.flatten(),
        Err(error) => match error.errno() {
            Some(libc::ENETUNREACH) => return Ok(Fate::NoRoute),
            // The errnos of dropping routes for IPv4. For IPv6 the kernel returns the route itself.
            Some(libc::EINVAL | libc::EHOSTUNREACH | libc::EACCES) => {
                return Ok(Fate::Dropped(find_dropping_route(client, to)?));
            }
            _ => return Err(failed(error.into())),
        },
    };
    let Some(way) = way else {
        let why = Problem::new("kernel-answer-unusable", "the kernel returned no route");
        return Err(failed(why));
    };
    // Kernels before 4.13 return only the lookup's result.
    let matched = found.next().and_then(Result::ok).flatten();
    let Route { net, protocol, metric, table, .. } = matched.unwrap_or_else(|| way.clone());
    let dev = look_up_name(client, way.index)?;
    let hop = Hop { route: Route { net, protocol, metric, table, ..way }, dev };
    Ok(if drops_packets(hop.route.kind) { Fate::Dropped(Some(hop)) } else { Fate::Sent(hop) })
}

/// The most specific route that drops packets to an address.
fn find_dropping_route(client: &mut Client, to: IpAddr) -> Result<Option<Hop>, KernelError> {
    let all = client.dump(&routes_of_table(family_number(to), 0), |message| {
        Route::decode(message).filter(|route| route.net.contains(&to) && drops_packets(route.kind))
    });
    let best = all?
        .into_iter()
        .max_by_key(|route| (route.net.prefix_len(), std::cmp::Reverse(route.metric)));
    Ok(best.map(|route| Hop { route, dev: LinkName::default() }))
}

pub fn look_up_neighbour(
    client: &mut Client,
    dev: LinkName,
    ip: IpAddr,
) -> Result<Neighbour, KernelError> {
    let Some(index) = look_up_index(client, dev)? else {
        return Ok(Neighbour::Absent);
    };
    let found = dump_neighbors(client, index, family_number(ip), |seen| {
        let mac = seen.mac.filter(|_| !seen.is_unanswered());
        let state = mac.map_or(Neighbour::Silent, |mac| Neighbour::Known(Mac(mac)));
        (seen.destination == Some(ip)).then_some(state)
    });
    Ok(found?.pop().unwrap_or(Neighbour::Absent))
}

/// The underlay address to which a vxlan interface sends frames for a MAC.
pub fn look_up_fdb(
    client: &mut Client,
    dev: LinkName,
    mac: Mac,
) -> Result<Option<IpAddr>, KernelError> {
    let Some(index) = look_up_index(client, dev)? else {
        return Ok(None);
    };
    let found = dump_neighbors(client, index, AF_BRIDGE, |seen| {
        seen.destination.filter(|_| seen.mac == Some(mac.0))
    });
    Ok(found?.into_iter().next())
}

/// The peer whose allowed IPs contain exactly the network `net`. Fails if the kernel has no
/// WireGuard.
pub fn look_up_wireguard_peer(
    client: &mut Client,
    dev: LinkName,
    net: IpNet,
) -> Result<Option<SeenPeer>, KernelError> {
    match look_up_index(client, dev)? {
        Some(index) => wireguard::find_peer(index, net),
        None => Ok(None),
    }
}

fn look_up_index(client: &mut Client, name: LinkName) -> Result<Option<u32>, KernelError> {
    let request = link_of_name(name.as_str());
    Ok(look_up_links(client, vec![request], |link| Some(link.index))?.pop())
}

/// Empty if the interface does not exist.
fn look_up_name(client: &mut Client, index: u32) -> Result<LinkName, KernelError> {
    if index == 0 {
        return Ok(LinkName::default());
    }
    let request = link_of_index(index);
    let found = look_up_links(client, vec![request], |link| LinkName::parse(link.name))?.pop();
    Ok(found.unwrap_or_default())
}

/// Silently or with an ICMP error to the sender.
fn drops_packets(kind: RouteKind) -> bool {
    matches!(kind, RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Other(RTN_PROHIBIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_look_up_of_a_link_is_no_missing_entry() {
        let mut client = Client::open().unwrap();
        let lo = LinkName::parse("lo").unwrap();
        assert_eq!(look_up_fdb(&mut client, lo, Mac([2; 6])), Ok(None));
        client.shrink_receive_buffer().unwrap();
        assert!(look_up_fdb(&mut client, lo, Mac([2; 6])).is_err());
        assert!(look_up_neighbour(&mut client, lo, [127, 0, 0, 1].into()).is_err());
    }
}
