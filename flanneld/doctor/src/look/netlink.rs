//! Reads interfaces and routes from the kernel, and looks up routes.

use crate::fact::Fact;
use crate::facts::Network;
use crate::facts::host::{
    FLANNELD, Host, Interface, LookupPurpose, PodPacket, PodPeer, PodRoute, Route, RouteError,
    RouteLookup,
};
use crate::pod_path;
use ipnet::IpNet;
use netlink::route::{forwarded_route, route_to};
use netlink::{Client, KernelError};
use netstate::host::read::{
    look_up_routes, read_interfaces, read_neighbours, read_policy_rules, read_routes,
};
use std::net::IpAddr;

/// An address whose route the doctor looks up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub to: IpAddr,
    /// As text.
    pub whose: String,
    pub kind: LookupPurpose,
}

/// For the lookup of pod packets' routes.
pub(super) struct PodsOf<'a> {
    pub network: &'a Network,
    /// Carries packets between nodes.
    pub underlay: Option<&'a str>,
    pub peers: &'a [PodPeer],
}

/// What the kernel reports; each of these facts can be unavailable on its own. Also looks up the routes of pod packets and the routes to the
/// targets.
pub(super) fn read(targets: &[Target], pods: Option<&PodsOf<'_>>) -> Host {
    let mut client = match Client::open() {
        Ok(opened) => opened,
        Err(error) => {
            let why = format!("no netlink socket: {error}");
            return Host {
                interfaces: Fact::unavailable(&why),
                routes: Fact::unavailable(&why),
                barring: Fact::unavailable(&why),
                lookups: Fact::unavailable(&why),
                pod_routes: Fact::unavailable(&why),
                policy_rules: Fact::unavailable(&why),
                underlay_neighbours: Fact::unavailable(&why),
                ..Host::default()
            };
        }
    };
    let interfaces = known_or_why("interfaces", read_interfaces(&mut client));
    let (routes, barring) = match read_relevant_routes(&mut client, pods.map(|pods| pods.network)) {
        Ok(mut routes) => {
            let barring = routes.extract_if(.., |route| !route.carries()).collect();
            (Fact::Known(routes), Fact::Known(barring))
        }
        Err(error) => {
            let why = describe_unread("routes", &error);
            (Fact::unavailable(&why), Fact::unavailable(&why))
        }
    };
    let requests = targets.iter().map(|target| route_to(target.to, 0));
    let answers = look_up_routes(&mut client, requests);
    let lookup = |(target, by): (&Target, Result<_, RouteError>)| RouteLookup {
        to: target.to,
        whose: target.whose.clone(),
        kind: target.kind,
        by,
    };
    let known = interfaces.known().map_or(&[][..], Vec::as_slice);
    let pod_routes = pod_routes(&mut client, known, pods);
    let underlay = pods
        .and_then(|pods| pods.underlay)
        .and_then(|name| known.iter().find(|interface| interface.name == name));
    let underlay_neighbours = match underlay {
        Some(underlay) => known_or_why("neighbours", read_neighbours(&mut client, underlay.index)),
        None => Fact::Absent,
    };
    Host {
        routes,
        barring,
        lookups: Fact::Known(targets.iter().zip(answers).map(lookup).collect()),
        pod_routes,
        policy_rules: known_or_why("policy routing rules", read_policy_rules(&mut client)),
        underlay_neighbours,
        interfaces,
        ..Host::default()
    }
}

/// `what` is in the plural.
fn known_or_why<T>(what: &str, read: Result<T, KernelError>) -> Fact<T> {
    read.map_or_else(|error| Fact::unavailable(describe_unread(what, &error)), Fact::Known)
}

fn describe_unread(what: &str, error: &KernelError) -> String {
    format!("cannot read the {what} (netlink): {error}")
}

/// The routes of other programs, and flannel's routes that overlap one of them; all routes if the network is unknown. A
/// daemon has as many other routes as peers, so it does not keep them.
fn read_relevant_routes(
    client: &mut Client,
    network: Option<&Network>,
) -> Result<Vec<Route>, KernelError> {
    let Some(network) = network else {
        return read_routes(client, |route| route.carries() || route.protocol != FLANNELD);
    };
    let mut routes = read_routes(client, |route| route.protocol != FLANNELD)?;
    let is_of_peers =
        |net: &&IpNet| network.contains(net) && !network.own.nets().any(|own| own.contains(*net));
    let nets: Vec<IpNet> =
        routes.iter().map(|route| &route.net).filter(is_of_peers).copied().collect();
    if !nets.is_empty() {
        routes.extend(read_routes(client, |route| {
            let overlaps = |net: &IpNet| route.net.contains(net) || net.contains(&route.net);
            route.protocol == FLANNELD && route.carries() && nets.iter().any(overlaps)
        })?);
    }
    Ok(routes)
}

pub(super) fn pod_routes(
    client: &mut Client,
    interfaces: &[Interface],
    pods: Option<&PodsOf<'_>>,
) -> Fact<Vec<PodRoute>> {
    let Some(PodsOf { network, underlay, peers }) = pods else {
        return Fact::unavailable("the network of this node is unknown");
    };
    let wanted = pod_path::packets(interfaces, network, *underlay, peers);
    let (out, mut back): (Vec<PodPacket>, Vec<PodPacket>) =
        wanted.into_iter().partition(|wanted| wanted.out);
    let ways = looked_up(client, out);
    for packet in &mut back {
        // Packets from a peer arrive on the interface that leads to the peer. With DirectRouting this is the underlay interface.
        let way = ways.iter().find(|way| way.packet.peer == packet.peer);
        let interface = way
            .and_then(|way| way.by.as_ref().ok())
            .and_then(|answer| interfaces.iter().find(|known| known.index == answer.index));
        if let Some(interface) = interface.filter(|known| Some(known.name.as_str()) == *underlay) {
            packet.packet.incoming = interface.index;
        }
    }
    let back = looked_up(client, back);
    Fact::Known(ways.into_iter().chain(back).collect())
}

fn looked_up(client: &mut Client, wanted: Vec<PodPacket>) -> Vec<PodRoute> {
    let requests = wanted
        .iter()
        .map(|PodPacket { packet, .. }| forwarded_route(packet.from, packet.to, packet.incoming));
    let answers = look_up_routes(client, requests);
    wanted.into_iter().zip(answers).map(|(packet, by)| PodRoute { packet, by }).collect()
}
