//! Checks of this host's underlay: routes, policy routing rules, addresses, and hardware addresses.

use crate::check::Check;
use crate::command::Command;
use crate::facts::Facts;
use crate::facts::daemon::Launch;
use crate::facts::host::{
    FLANNELD, Interface, LookupPurpose, Neighbour, Route, RouteError, RouteLookup, address,
    joins_hosts,
};
use crate::facts::mesh::Path;
use crate::finding::{Finding, Severity};
use crate::let_in::near;
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use netstate::host::LinkClass;
use netstate::names::Mac;
use netstate::object::route::RouteKind;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use types::Family;

/// The most peers in the evidence and in the commands.
const MAX_LISTED: usize = 4;
/// These report, from probe results, peers whose packets do not arrive.
const SILENCE: &[&str] =
    &["isolated", "peer-cut", "overlay-cut", "one-way", "encap-blocked", "wireguard-silent"];
/// [`SILENCE`], and checks whose findings may result from another host with this node's address.
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
/// The most addresses that the check compares with routes that drop packets.
const MAX_ASKED: usize = 256;

pub const CHECKS: &[Check] = &[
    Check::new(
        "peer-unrouted",
        Severity::Broken,
        "This node has no route to a peer's address",
        &[
            Need::Network,
            Need::Mesh,
            Need::RouteLookups,
            Need::Interfaces,
            Need::Barring,
            Need::PolicyRules,
        ],
        SILENCE,
        peer_unrouted,
    )
    .waiting(),
    Check::new(
        "public-ip",
        Severity::Broken,
        "This node publishes an address at which peers cannot reach it",
        &[Need::Network, Need::Mesh, Need::OwnLease, Need::Interfaces, Need::Choice],
        SILENCE,
        public_ip,
    )
    .waiting(),
    Check::new(
        "address-conflict",
        Severity::Broken,
        "Another host has this node's address",
        &[Need::Network, Need::Mesh, Need::Interfaces, Need::Choice, Need::Rival],
        SILENCE_AND_LIES,
        address_conflict,
    )
    .waiting(),
    Check::new(
        "duplicate-mac",
        Severity::Broken,
        "Two hosts have the same MAC",
        &[Need::Network, Need::Mesh, Need::Interfaces, Need::Choice, Need::UnderlayNeighbours],
        SILENCE,
        duplicate_mac,
    )
    .waiting(),
];

/// Why packets to a peer do not leave through the underlay interface.
fn astray(facts: &Facts, lookup: &RouteLookup) -> Option<String> {
    // A VRF has its own routing table, which the lookup does not use.
    let master = facts.underlay().and_then(|underlay| facts.host.interface(underlay.master?));
    if master.is_some_and(|master| master.kind == "vrf") {
        return None;
    }
    let answer = match &lookup.by {
        Ok(answer) => answer,
        Err(RouteError::Unanswered) => return None,
        Err(error) => return Some(format!("the kernel reports: {error}")),
    };
    let interface = facts.host.interface(answer.index)?;
    let underlay = facts.underlay()?;
    // Routed hosts reach each other through any uplink, and some peers through a VPN. Another interface is wrong only for peers on the underlay's link.
    let is_near = underlay.nets().any(|net| net.contains(&lookup.to));
    let leads_back = interface.loopback || interface.name.starts_with("flannel");
    let is_astray =
        interface.index != underlay.index && (leads_back || is_near && !joins_hosts(interface));
    is_astray.then(|| format!("packets leave by {}", interface.name))
}

fn peer_unrouted(facts: &Facts) -> Vec<Finding> {
    let lookups = facts.lookups();
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
    let is_lost = |ip: IpAddr| lost.iter().any(|(lookup, _)| lookup.to == ip);
    let paths = facts.paths().iter();
    let subnets = paths.filter(|path| is_lost(path.address)).map(|path| path.subnet);
    let mut finding = Finding::new(
        "peer-unrouted",
        Severity::Broken,
        first.to.to_string(),
        format!(
            "this host has no route to {} at {}{more}: {why}",
            first.whose, first.to
        ),
        "packets to these nodes do not leave this host: its routes, its policy routing rules or the prefix of its address are wrong",
    )
    .within(subnets);
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
        let name = facts.underlay().map(|underlay| underlay.name.as_str());
        return vec![
            finding
                .run(format!("ip address show dev {}", word(name.unwrap_or("INTERFACE"))))
                .run(format!("ip route show match {}", first.to)),
        ];
    }
    vec![
        finding.run_all(commands).note(
            "this change does not survive a reboot: the program that added the route or the rule adds it again",
        ),
    ]
}

/// The rules or routes that misroute packets to peers, each with a command that fixes it.
///
/// Routes to other peers are included, because the probes to these may also fail soon.
fn causes(facts: &Facts, lost: &[(&RouteLookup, String)]) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> =
        lost.iter().filter_map(|(lookup, _)| by_rule(facts, lookup)).collect();
    if !found.is_empty() {
        return found;
    }
    let lookups = lost.iter().map(|(lookup, _)| lookup.to);
    let peers = facts.peers();
    for to in lookups.chain(peers.flat_map(|peer| peer.addresses())).take(MAX_ASKED) {
        found.extend(by_route(facts, to));
    }
    found
}

fn by_rule(facts: &Facts, lookup: &RouteLookup) -> Option<(String, String)> {
    let ip = if lookup.to.is_ipv6() { "ip -6" } else { "ip" };
    let family = Family::from(lookup.to);
    let near: Option<IpNet> = near(facts, family).into_iter().find(|net| net.contains(&lookup.to));
    let source = facts
        .underlay()
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
        format!("{ip} rule add priority {} to {to} lookup main", rule.priority - 1),
    ))
}

/// The most specific route that drops packets to an address; `None` if a more specific one forwards them.
fn by_route(facts: &Facts, to: IpAddr) -> Option<(String, String)> {
    let ip = if to.is_ipv6() { "ip -6" } else { "ip" };
    let most = |routes: &'_ [Route]| {
        routes
            .iter()
            .filter(|route| route.net.contains(&to))
            .map(|route| route.net.prefix_len())
            .max()
    };
    let (barring, routes) = (facts.host.barring.known()?, facts.host.routes.known()?);
    let route = barring
        .iter()
        .filter(|route| route.net.contains(&to))
        .max_by_key(|route| route.net.prefix_len())?;
    if most(routes).is_some_and(|len| len > route.net.prefix_len()) {
        return None;
    }
    let words = format!("{} {}", kind(route), route.net);
    Some((format!("the route `{words}`"), format!("{ip} route delete {words}")))
}

/// The type, as in the output of `ip route`.
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

/// Published addresses that no interface of this node has.
///
/// Such an address may belong to a router that forwards the tunnel's port to this node. It is reported only if peers respond over the underlay, but
/// none of their packets arrives over the overlay.
fn public_ip(facts: &Facts) -> Vec<Finding> {
    let (Some(own), Some(underlay)) = (facts.leases.own.known(), facts.underlay()) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for published in &own.published {
        let family = Family::from(*published);
        let judged = facts.judged(family);
        let there = judged.iter().filter(|path| path.is_lost() && path.underlay).count();
        // If this host drops the packets itself, the address may be right.
        let is_missed = there > 0
            && judged.iter().all(|path| path.is_lost())
            && !super::mesh::is_shut_here(facts, family);
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
        .within(judged.iter().map(|path| path.subnet))
        .seen(
            format!("{} has {own_address}", underlay.name),
            format!("ip address show dev {ip}"),
        )
        .seen(
            format!("of the peers, {there} reply over the underlay, but none replies over the overlay"),
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

/// Tunnels and similar devices have no Ethernet address.
fn is_ethernet(interface: &Interface) -> bool {
    interface.class() != LinkClass::Virtual
        && interface.kind != "ipvlan"
        && interface.mac.is_some_and(|mac| mac.0 != [0; 6])
}

fn address_conflict(facts: &Facts) -> Vec<Finding> {
    let (Some(rival), Some(underlay)) = (facts.host.rival.known(), facts.underlay()) else {
        return Vec::new();
    };
    let Some(net) = address(underlay, Family::V4) else {
        return Vec::new();
    };
    let name = word(&underlay.name);
    let own = underlay.mac.map(|mac| mac.to_string()).unwrap_or_default();
    // A peer that other nodes do not reach either has a fault of its own.
    let is_hit = |path: &&Path| !matches!(path.others, Some((0, 1..)));
    let hit = facts.paths().iter().filter(is_hit).map(|path| path.subnet);
    vec![
        Finding::new(
            "address-conflict",
            Severity::Broken,
            net.addr().to_string(),
            format!("another host has the address {} of this node", net.addr()),
            "packets to this node go to the other host while the other host's MAC is in the sender's neighbour table",
        )
        .within(hit)
        .seen(
            format!("the MAC {rival} replies to ARP for this address; {} has the MAC {own}", underlay.name),
            format!("arping -D -I {name} {}", net.addr()),
        )
        .run(format!("ip address show dev {name}"))
        .note(&format!("give one of the two hosts another address. The MAC table of the switch, or `bridge fdb show` on a hypervisor, shows where {rival} is")),
    ]
}

/// Unreachable peers that share a MAC with this node or with exactly one other node. A MAC that many nodes share belongs to the router to them.
fn duplicate_mac(facts: &Facts) -> Vec<Finding> {
    let (Some(neighbours), Some(underlay)) = (
        facts.host.underlay_neighbours.known(),
        facts.underlay().filter(|underlay| is_ethernet(underlay)),
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
    // A lease may repeat the address of another peer.
    let mut nodes: BTreeMap<Mac, BTreeMap<IpAddr, &Path>> = BTreeMap::new();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for path in facts.paths() {
        if let Some(mac) = macs.get(&path.address) {
            nodes.entry(*mac).or_default().insert(path.address, path);
            known.insert(&path.node);
        }
    }
    // A gateway may answer for other hosts. These hosts then appear with the gateway's hardware address.
    let routers: BTreeSet<Mac> = facts
        .host
        .routes
        .known()
        .into_iter()
        .flatten()
        // The gateways of flannel's routes are peers.
        .filter(|route| route.protocol != FLANNELD)
        .filter_map(|route| macs.get(&route.via?).copied())
        .collect();
    let gone: BTreeSet<IpNet> =
        super::leases::gone(facts).flat_map(|peer| peer.subnets.nets()).collect();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut findings = Vec::new();
    for path in facts.paths().iter().filter(|path| path.is_lost() && !gone.contains(&path.subnet)) {
        let Some(mac) = macs.get(&path.address).filter(|mac| !routers.contains(mac)) else {
            continue;
        };
        let is_other = |other: &&&Path| {
            other.address != path.address && other.address.is_ipv4() == path.address.is_ipv4()
        };
        let alike = nodes.get(mac).into_iter().flat_map(BTreeMap::values);
        let others: Vec<&&Path> = alike.filter(is_other).take(2).collect();
        let other = match others.as_slice() {
            _ if *mac == own => "this node",
            [one] if known.len() > 2 => &one.node,
            _ => continue,
        };
        let both = others.iter().map(|other| other.subnet).chain([path.subnet]);
        let scope = (*mac != own).then(|| both.collect());
        if findings.len() == MAX_LISTED || !told.insert(&path.node) {
            continue;
        }
        let finding = Finding {
            scope,
            ..Finding::new(
                "duplicate-mac",
                Severity::Broken,
                path.node.to_string(),
                format!("{} and {other} have the same MAC, {mac}", path.node),
                "switches send the packets for both nodes to only one of them; cloned machines often have the same MAC",
            )
        };
        findings.push(
            finding
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
