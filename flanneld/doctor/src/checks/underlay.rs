//! Checks of this host's underlay: routes, policy routing rules, addresses, and hardware addresses.

use crate::check::Check;
use crate::command::Command;
use crate::facts::Facts;
use crate::facts::daemon::Launch;
use crate::facts::host::{
    Interface, LookupPurpose, Neighbour, NoRoute, Route, RouteLookup, address, joins_hosts,
};
use crate::facts::mesh::{Path, State};
use crate::finding::{Finding, Severity};
use crate::let_in::near;
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use netstate::host::LinkClass;
use netstate::names::Mac;
use netstate::route::RouteKind;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use types::Family;

/// Maximum number of peers in the evidence and in the commands.
const MAX_LISTED: usize = 4;
/// Checks that report, from probe results, peers whose packets do not arrive.
const SILENCE: &[&str] = &[
    "isolated",
    "peer-cut",
    "overlay-cut",
    "one-way",
    "encap-blocked",
    "wireguard-silent",
];
/// The checks in [`SILENCE`], and checks whose findings may result from another host with this node's address.
const SILENCE_AND_LIES: &[&str] = &[
    "isolated",
    "peer-cut",
    "overlay-cut",
    "one-way",
    "encap-blocked",
    "wireguard-silent",
    "wrong-node",
    "lossy",
];
/// Maximum number of addresses that the check compares with routes that drop packets.
const MAX_ASKED: usize = 256;
/// Minimum number of peers that must respond only over the underlay before the check considers this node's published address wrong.
const MIN_PEERS: usize = 2;

/// The checks of the underlay on this host.
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
        explains: SILENCE,
        waits: true,
        judge: peer_unrouted,
    },
    Check {
        id: "public-ip",
        severity: Severity::Broken,
        title: "This node publishes an address at which peers cannot reach it",
        needs: &[
            Need::Network,
            Need::Mesh,
            Need::OwnLease,
            Need::Interfaces,
            Need::Choice,
        ],
        explains: SILENCE,
        waits: true,
        judge: public_ip,
    },
    Check {
        id: "no-arp",
        severity: Severity::Broken,
        title: "The underlay interface does not reply to ARP",
        needs: &[Need::Network, Need::Mesh, Need::Interfaces, Need::Choice],
        explains: SILENCE,
        waits: true,
        judge: no_arp,
    },
    Check {
        id: "address-conflict",
        severity: Severity::Broken,
        title: "Another host has this node's address",
        needs: &[Need::Network, Need::Mesh, Need::Interfaces, Need::Choice],
        explains: SILENCE_AND_LIES,
        waits: true,
        judge: address_conflict,
    },
    Check {
        id: "duplicate-mac",
        severity: Severity::Broken,
        title: "Two hosts have the same MAC",
        needs: &[
            Need::Network,
            Need::Mesh,
            Need::Interfaces,
            Need::Choice,
            Need::UnderlayNeighbours,
        ],
        explains: SILENCE,
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

/// Returns the reason why packets to a peer do not leave through the underlay interface; `None` without a fault.
fn astray(facts: &Facts, lookup: &RouteLookup) -> Option<String> {
    // A VRF has its own routing table, which the lookup does not use.
    let master = underlay(facts).and_then(|underlay| facts.host.interface(underlay.master?));
    if master.is_some_and(|master| master.kind == "vrf") {
        return None;
    }
    let answer = match &lookup.by {
        Ok(answer) => answer,
        Err(NoRoute::Unanswered) => return None,
        Err(error) => return Some(format!("the kernel reports: {error}")),
    };
    let interface = facts.host.interface(answer.index)?;
    let underlay = underlay(facts)?;
    // Routed hosts reach each other through any uplink, and some peers through a VPN. Another interface is wrong only for peers on the underlay's link.
    let is_near = underlay.nets().any(|net| net.contains(&lookup.to));
    let leads_back = interface.loopback || interface.name.starts_with("flannel");
    let is_astray =
        interface.index != underlay.index && (leads_back || is_near && !joins_hosts(interface));
    is_astray.then(|| format!("packets leave by {}", interface.name))
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
        "packets to these nodes do not leave this host: its routes, its policy routing rules or the prefix of its address are wrong",
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
        finding.run_all(commands).note(
            "this change does not survive a reboot: the program that added the route or the rule adds it again",
        ),
    ]
}

/// Returns the rules or routes that misroute packets to peers, each with a command that fixes the fault.
///
/// The result includes routes to other peers, because the probes to these peers may also fail soon.
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
    for to in lookups
        .chain(peers.flat_map(|peer| peer.addresses()))
        .take(MAX_ASKED)
    {
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
        .and_then(|underlay| address(underlay, family))
        .map_or(lookup.to, |net| net.addr());
    let rule = facts
        .host
        .policy_rules
        .known()?
        .iter()
        .find(|rule| rule.is_about(source, lookup.to, Some("lo")) && rule.decides(lookup.to))
        .filter(|rule| !rule.is_standard() && rule.priority > 1)?;
    let to = near.unwrap_or_else(|| IpNet::from(lookup.to));
    Some((
        format!("the rule `{rule}`"),
        format!(
            "{ip} rule add priority {} to {to} lookup main",
            rule.priority - 1
        ),
    ))
}

/// Returns the most specific route that drops packets to an address; `None` if a more specific route forwards the packets.
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

/// Returns the type of a route, as in the output of `ip route`.
fn kind(route: &Route) -> &'static str {
    // From linux/rtnetlink.h.
    const RTN_PROHIBIT: u8 = 8;
    match route.kind {
        RouteKind::Unicast => "unicast",
        RouteKind::Blackhole => "blackhole",
        RouteKind::Unreachable => "unreachable",
        RouteKind::Other(RTN_PROHIBIT) => "prohibit",
        RouteKind::Other(_) => "throw",
    }
}

/// Returns findings about published addresses that no interface of this node has.
///
/// A published address may belong to a router that forwards the tunnel's port to this node. The check therefore reports the address only if peers
/// respond over the underlay, but no packet from any peer arrives over the overlay.
fn public_ip(facts: &Facts) -> Vec<Finding> {
    let (Some(own), Some(underlay)) = (facts.leases.own.known(), underlay(facts)) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for published in &own.published {
        let family = Family::from(*published);
        let judged: Vec<&Path> = paths(facts)
            .iter()
            .filter(|path| {
                Family::from(path.address) == family && path.verdict.state != State::Unknown
            })
            .collect();
        let there = judged
            .iter()
            .filter(|path| path.is_lost() && path.underlay)
            .count();
        let is_missed = there >= MIN_PEERS && judged.iter().all(|path| path.is_lost());
        let address = address(underlay, family);
        let Some(address) = address.filter(|_| is_missed && facts.host.owner(*published).is_none())
        else {
            continue;
        };
        let (ip, own_address) = (word(&underlay.name), address.addr());
        let finding = Finding::new(
            "public-ip",
            Severity::Broken,
            published.to_string(),
            format!("this node publishes {published}, but none of its interfaces has that address"),
            format!("peers send packets to {published}, but no packet arrives from any of them. Unless a router forwards tunnel packets from that address to this node, the address is wrong"),
        )
        .of(family)
        .seen(
            format!("{} has {own_address}", underlay.name),
            format!("ip address show dev {ip}"),
        )
        .seen(
            format!("{there} peers reply over the underlay, but none of them replies over the overlay"),
            "probes",
        );
        findings.push(match &facts.daemon.launch {
            // The options of the DaemonSet apply to all nodes, so only an annotation can change the address of one node.
            Launch::Kubernetes { .. } => {
                let node = facts
                    .kubernetes
                    .known()
                    .map_or(facts.host.name.as_str(), |known| known.node.as_str());
                let name = family.pick("public-ip-overwrite", "public-ipv6-overwrite");
                finding.run(Command::kubectl(format!(
                    "annotate node {} --overwrite flannel.alpha.coreos.com/{name}={own_address}",
                    word(node)
                )))
            }
            Launch::Systemd => finding.run_all(super::interface_remedy::set_option(
                facts,
                family.pick("public-ip", "public-ipv6"),
                &own_address.to_string(),
            )),
        });
    }
    findings
}

/// Returns whether an interface has an Ethernet hardware address. Tunnels and similar devices have no Ethernet address, and always have the flag
/// NOARP.
fn is_ethernet(interface: &Interface) -> bool {
    interface.class() != LinkClass::Virtual
        && interface.kind != "ipvlan"
        && interface.mac.is_some_and(|mac| mac.0 != [0; 6])
}

fn no_arp(facts: &Facts) -> Vec<Finding> {
    let mut judged = paths(facts)
        .iter()
        .filter(|path| path.address.is_ipv4() && path.verdict.state != State::Unknown)
        .peekable();
    let is_lost = judged.peek().is_some() && judged.all(|path| path.verdict.state == State::CutOff);
    let is_odd = |underlay: &&Interface| underlay.noarp && is_ethernet(underlay) && is_lost;
    let Some(underlay) = underlay(facts).filter(is_odd) else {
        return Vec::new();
    };
    let name = &underlay.name;
    vec![
        Finding::new(
            "no-arp",
            Severity::Broken,
            name,
            format!("{name} does not reply to ARP"),
            "other hosts do not learn the MAC of this interface, and this host learns none of their MACs",
        )
        .seen(
            format!("{name} has the flag NOARP"),
            format!("ip link show dev {}", word(name)),
        )
        .run(format!("ip link set dev {} arp on", word(name)))
        .note("this change does not survive a reboot: the configuration of this interface disables ARP"),
    ]
}

fn address_conflict(facts: &Facts) -> Vec<Finding> {
    let (Some(rival), Some(underlay)) = (facts.host.rival, underlay(facts)) else {
        return Vec::new();
    };
    let Some(net) = address(underlay, Family::V4) else {
        return Vec::new();
    };
    let name = word(&underlay.name);
    let own = underlay.mac.map(|mac| mac.to_string()).unwrap_or_default();
    vec![
        Finding::new(
            "address-conflict",
            Severity::Broken,
            net.addr().to_string(),
            format!("another host has the address {} of this node", net.addr()),
            "packets to this node go to the other host while the other host's MAC is in the sender's neighbour table",
        )
        .seen(
            format!("the MAC {rival} replies to ARP for this address; {} has the MAC {own}", underlay.name),
            format!("arping -D -I {name} {}", net.addr()),
        )
        .run(format!("ip address show dev {name}"))
        .note(&format!("give one of the two hosts another address. The MAC table of the switch, or `bridge fdb show` on a hypervisor, shows where {rival} is")),
    ]
}

/// Returns findings about unreachable peers that share a MAC with this node or with exactly one other node. A MAC that many nodes share belongs to
/// the router through which this node reaches the nodes.
fn duplicate_mac(facts: &Facts) -> Vec<Finding> {
    let (Some(neighbours), Some(underlay)) = (
        facts.host.underlay_neighbours.known(),
        underlay(facts).filter(|underlay| is_ethernet(underlay)),
    ) else {
        return Vec::new();
    };
    let Some(own) = underlay.mac else {
        return Vec::new();
    };
    let macs: BTreeMap<IpAddr, Mac> = neighbours
        .iter()
        .filter_map(|neighbour: &Neighbour| Some((neighbour.address, neighbour.mac?)))
        .collect();
    let mut nodes: BTreeMap<Mac, BTreeSet<&str>> = BTreeMap::new();
    for path in paths(facts) {
        if let Some(mac) = macs.get(&path.address) {
            nodes.entry(*mac).or_default().insert(&path.node);
        }
    }
    // A gateway may answer for other hosts. These hosts then appear with the gateway's hardware address.
    let routers: BTreeSet<Mac> = facts
        .host
        .routes
        .known()
        .into_iter()
        .flatten()
        .filter_map(|route| macs.get(&route.via?).copied())
        .collect();
    let gone: BTreeSet<IpNet> = super::leases::gone(facts)
        .flat_map(|peer| peer.subnets.nets())
        .collect();
    let known: BTreeSet<&str> = nodes.values().flatten().copied().collect();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut findings = Vec::new();
    for path in paths(facts)
        .iter()
        .filter(|path| path.is_lost() && !gone.contains(&path.subnet))
    {
        let Some(mac) = macs.get(&path.address).filter(|mac| !routers.contains(mac)) else {
            continue;
        };
        let others: Vec<&str> = nodes
            .get(mac)
            .into_iter()
            .flatten()
            .copied()
            .filter(|node| *node != &*path.node)
            .collect();
        let other = match others.as_slice() {
            _ if *mac == own => "this node",
            [one] if known.len() > 2 => one,
            _ => continue,
        };
        if findings.len() == MAX_LISTED || !told.insert(&path.node) {
            continue;
        }
        findings.push(
            Finding::new(
                "duplicate-mac",
                Severity::Broken,
                path.node.to_string(),
                format!("{} and {other} have the same MAC, {mac}", path.node),
                "switches send the packets for both nodes to only one of them; cloned machines often have the same MAC",
            )
            .seen(
                format!("{} is at {mac}", path.address),
                format!("ip neighbour show dev {}", word(&underlay.name)),
            )
            .run(format!("ip link show dev {}", word(&underlay.name)))
            .on("the clone"),
        );
    }
    findings
}
