//! The path of packets between nodes through this host: its routes, its rules of policy routing, hardware addresses.

use crate::check::Check;
use crate::facts::Facts;
use crate::facts::host::{
    Interface, LookupPurpose, Neighbour, NoRoute, Route, RouteLookup, joins_hosts,
};
use crate::facts::mesh::{Path, State};
use crate::finding::{Finding, Severity};
use crate::let_in::near;
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use netstate::route::RouteKind;
use std::net::IpAddr;
use types::Family;

/// So many peers are named as evidence, and have a command.
const MAX_LISTED: usize = 4;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    Check {
        id: "peer-unrouted",
        severity: Severity::Broken,
        title: "This node has no route to a peer's address",
        needs: &[
            Need::Network,
            Need::Mesh,
            Need::RouteLookups,
            Need::Interfaces,
            Need::Barring,
            Need::PolicyRules,
        ],
        explains: &[
            "isolated",
            "peer-cut",
            "overlay-cut",
            "one-way",
            "encap-blocked",
            "wireguard-silent",
        ],
        waits: true,
        judge: peer_unrouted,
    },
    Check {
        id: "public-ip",
        severity: Severity::Broken,
        title: "This node publishes an address by which it is not reached",
        needs: &[
            Need::Network,
            Need::Mesh,
            Need::OwnLease,
            Need::Interfaces,
            Need::Choice,
        ],
        explains: &[
            "isolated",
            "peer-cut",
            "overlay-cut",
            "one-way",
            "encap-blocked",
            "wireguard-silent",
        ],
        waits: true,
        judge: public_ip,
    },
    Check {
        id: "no-arp",
        severity: Severity::Broken,
        title: "The interface between nodes answers no ARP",
        needs: &[Need::Network, Need::Mesh, Need::Interfaces, Need::Choice],
        explains: &[
            "isolated",
            "peer-cut",
            "overlay-cut",
            "one-way",
            "encap-blocked",
            "wireguard-silent",
        ],
        waits: true,
        judge: no_arp,
    },
    Check {
        id: "duplicate-mac",
        severity: Severity::Broken,
        title: "Two hosts have the same hardware address",
        needs: &[
            Need::Network,
            Need::Mesh,
            Need::Interfaces,
            Need::Choice,
            Need::UnderlayNeighbours,
        ],
        explains: &[
            "isolated",
            "peer-cut",
            "overlay-cut",
            "one-way",
            "encap-blocked",
            "wireguard-silent",
        ],
        waits: true,
        judge: duplicate_mac,
    },
];

fn underlay(facts: &Facts) -> Option<&Interface> {
    facts.host.named(&facts.daemon.choice.known()?.interface)
}

fn paths(facts: &Facts) -> &[Path] {
    super::mesh::paths(facts)
}

/// Why packets to an address do not leave by the underlay; `None` if they do, or may.
fn astray(facts: &Facts, lookup: &RouteLookup) -> Option<String> {
    let answer = match &lookup.by {
        Ok(answer) => answer,
        Err(NoRoute::Unanswered) => return None,
        Err(error) => return Some(format!("the kernel answers: {error}")),
    };
    let interface = facts.host.interface(answer.index)?;
    // Routed hosts reach each other by any of their uplinks.
    let fits = joins_hosts(interface)
        || underlay(facts).is_some_and(|underlay| underlay.index == interface.index);
    (!fits).then(|| format!("it goes out by {}", interface.name))
}

fn peer_unrouted(facts: &Facts) -> Vec<Finding> {
    let lookups = facts.host.lookups.known().into_iter().flatten();
    let lost: Vec<(&RouteLookup, String)> = lookups
        .filter(|lookup| lookup.kind == LookupPurpose::SilentPeer)
        .filter_map(|lookup| Some((lookup, astray(facts, lookup)?)))
        .collect();
    let Some((first, why)) = lost.first() else {
        return Vec::new();
    };
    let more = match lost.len() {
        1 => String::new(),
        several => format!(" and {} more", several - 1),
    };
    let mut finding = Finding::new(
        "peer-unrouted",
        Severity::Broken,
        first.to.to_string(),
        format!(
            "this host has no route to {} at {}{more}: {why}",
            first.whose, first.to
        ),
        "packets to these nodes do not leave this host: its routes, its rules of policy routing or the prefix of its address are wrong",
    );
    for (lookup, why) in lost.iter().take(MAX_LISTED) {
        finding = finding.seen(
            format!("{} at {}: {why}", lookup.whose, lookup.to),
            format!("ip route get {}", lookup.to),
        );
    }
    let mut commands: Vec<String> = Vec::new();
    for (seen, command) in causes(facts, &lost) {
        if !commands.contains(&command) && commands.len() < 2 * MAX_LISTED {
            finding = finding.seen(seen, "ip rule; ip route show table all");
            commands.push(command);
        }
    }
    if commands.is_empty() {
        let name = underlay(facts).map(|underlay| underlay.name.as_str());
        return vec![
            finding
                .run(format!(
                    "ip address show dev {}",
                    word(name.unwrap_or("INTERFACE"))
                ))
                .run(format!("ip route show match {}", first.to)),
        ];
    }
    vec![
        finding
            .run_all(commands)
            .note("not kept over a reboot: what made the route or the rule makes it again"),
    ]
}

/// What leads packets to peers astray, and the command that ends it: rules of policy routing, and routes that drop. Routes to other peers drop as
/// well: probes will miss them next.
fn causes(facts: &Facts, lost: &[(&RouteLookup, String)]) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = lost
        .iter()
        .filter_map(|(lookup, _)| by_rule(facts, lookup))
        .collect();
    if !found.is_empty() {
        return found;
    }
    let lookups = lost.iter().map(|(lookup, _)| lookup.to);
    let peers = facts.leases.peers.known().into_iter().flatten();
    for to in lookups.chain(peers.flat_map(|peer| peer.addresses())) {
        found.extend(by_route(facts, to));
    }
    found
}

fn by_rule(facts: &Facts, lookup: &RouteLookup) -> Option<(String, String)> {
    let ip = if lookup.to.is_ipv6() { "ip -6" } else { "ip" };
    let family = Family::from(lookup.to);
    let near: Option<IpNet> = near(facts, facts.daemon.choice.known(), family)
        .into_iter()
        .find(|net| net.contains(&lookup.to));
    let source = underlay(facts)
        .and_then(|underlay| crate::facts::host::address(underlay, family))
        .map_or(lookup.to, |net| net.addr());
    let rule = facts
        .host
        .policy_rules
        .known()?
        .iter()
        .find(|rule| rule.priority > 1 && rule.is_about(source, lookup.to, None))
        .filter(|rule| !rule.is_standard())?;
    let to = near.unwrap_or_else(|| IpNet::from(lookup.to));
    Some((
        format!("the rule `{rule}`"),
        format!(
            "{ip} rule add priority {} to {to} lookup main",
            rule.priority - 1
        ),
    ))
}

/// The most specific route that drops packets to an address, if that is what they take.
fn by_route(facts: &Facts, to: IpAddr) -> Option<(String, String)> {
    let ip = if to.is_ipv6() { "ip -6" } else { "ip" };
    let most = |routes: &'_ [Route]| {
        routes
            .iter()
            .filter(|route| route.to.contains(&to))
            .map(|route| route.to.prefix_len())
            .max()
    };
    let (barring, routes) = (facts.host.barring.known()?, facts.host.routes.known()?);
    let route = barring
        .iter()
        .filter(|route| route.to.contains(&to))
        .max_by_key(|route| route.to.prefix_len())?;
    if most(routes).is_some_and(|len| len > route.to.prefix_len()) {
        return None;
    }
    let words = format!("{} {}", kind(route), route.to);
    Some((
        format!("the route `{words}`"),
        format!("{ip} route delete {words}"),
    ))
}

/// A route's type as `ip route` names it.
fn kind(route: &Route) -> &'static str {
    // linux/rtnetlink.h
    match route.kind {
        RouteKind::Unicast => "unicast",
        RouteKind::Blackhole => "blackhole",
        RouteKind::Other(7) => "unreachable",
        RouteKind::Other(8) => "prohibit",
        RouteKind::Other(_) => "throw",
    }
}

/// A published address that is no interface's may be a router's that forwards the tunnel's port: only where nothing arrives it is the reason.
fn public_ip(facts: &Facts) -> Vec<Finding> {
    let (Some(own), Some(underlay)) = (facts.leases.own.known(), underlay(facts)) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for published in &own.published {
        let family = Family::from(*published);
        let (lost, all) = paths(facts)
            .iter()
            .filter(|path| {
                Family::from(path.address) == family && path.verdict.state != State::Unknown
            })
            .fold((0, 0), |(lost, all), path| {
                (lost + usize::from(path.is_lost()), all + 1)
            });
        let address = crate::facts::host::address(underlay, family);
        let Some(address) =
            address.filter(|_| all > 0 && lost == all && facts.host.owner(*published).is_none())
        else {
            continue;
        };
        let flag = family.pick("public-ip", "public-ipv6");
        findings.push(
            Finding::new(
                "public-ip",
                Severity::Broken,
                published.to_string(),
                format!("this node publishes {published}, which no interface of it has"),
                format!("peers send to {published}, and nothing arrives from any of them: unless a router forwards the tunnel from there to this node, the address is wrong"),
            )
            .of(family)
            .seen(
                format!("{} has {}", underlay.name, address.addr()),
                format!("ip address show dev {}", word(&underlay.name)),
            )
            .seen(
                format!("none of {all} peers is heard through the overlay"),
                "probes",
            )
            .run_all(super::interface_remedy::set_option(
                facts,
                flag,
                &address.addr().to_string(),
            )),
        );
    }
    findings
}

fn no_arp(facts: &Facts) -> Vec<Finding> {
    let is_lost = paths(facts)
        .iter()
        .any(|path| path.address.is_ipv4() && path.verdict.state == State::CutOff);
    let Some(underlay) = underlay(facts).filter(|underlay| underlay.noarp && is_lost) else {
        return Vec::new();
    };
    let name = &underlay.name;
    vec![
        Finding::new(
            "no-arp",
            Severity::Broken,
            name,
            format!("{name} answers no ARP"),
            "other hosts do not learn its hardware address, and this one learns none of theirs",
        )
        .seen(
            format!("{name} has the flag NOARP"),
            format!("ip link show dev {}", word(name)),
        )
        .run(format!("ip link set dev {} arp on", word(name)))
        .note("not kept over a reboot: what configures this interface turns it off"),
    ]
}

fn duplicate_mac(facts: &Facts) -> Vec<Finding> {
    let (Some(neighbours), Some(underlay)) =
        (facts.host.underlay_neighbours.known(), underlay(facts))
    else {
        return Vec::new();
    };
    let Some(own) = underlay.mac else {
        return Vec::new();
    };
    let mac_of = |address: IpAddr| {
        neighbours
            .iter()
            .find(|neighbour: &&Neighbour| neighbour.address == address)
            .and_then(|neighbour| neighbour.mac)
    };
    let lost: Vec<(&Path, netstate::names::Mac)> = paths(facts)
        .iter()
        .filter(|path| path.verdict.state == State::CutOff || path.is_lost())
        .filter_map(|path| Some((path, mac_of(path.address)?)))
        .collect();
    let mut findings = Vec::new();
    for (path, mac) in lost {
        let other = if mac == own {
            Some("this node".to_owned())
        } else {
            // Behind a router all have its address.
            let mut alike = paths(facts)
                .iter()
                .filter(|known| known.node != path.node && mac_of(known.address) == Some(mac));
            let first = alike.next();
            first
                .filter(|_| alike.next().is_none() && paths(facts).len() > 2)
                .map(|known| known.node.to_string())
        };
        let Some(other) = other else {
            continue;
        };
        findings.push(
            Finding::new(
                "duplicate-mac",
                Severity::Broken,
                path.node.to_string(),
                format!(
                    "{} and {other} have the same hardware address, {mac}",
                    path.node
                ),
                "switches send the packets of both to one of them: cloned machines often have it",
            )
            .seen(
                format!("{} is at {mac}", path.address),
                format!("ip neighbour show dev {}", word(&underlay.name)),
            )
            .run(format!("ip link show dev {}", word(&underlay.name)))
            .on("the machine that was cloned"),
        );
        if findings.len() == MAX_LISTED {
            break;
        }
    }
    findings
}
