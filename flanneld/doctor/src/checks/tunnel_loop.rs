//! Checks for peers whose addresses this node reaches only through flannel's own tunnel.

use crate::check::Check;
use crate::facts::Facts;
use crate::facts::host::{LookupPurpose, RouteLookup};
use crate::finding::{Finding, HERE, Severity};
use crate::need::Need;
use crate::shell::word;
use std::net::IpAddr;

/// The most peers in the evidence.
const MAX_LISTED: usize = 8;

pub(crate) const CHECKS: &[Check] = &[LOOP];

const LOOP: Check = Check::new(
    "tunnel-loop",
    Severity::Broken,
    "Packets to a peer's address enter flannel's own tunnel",
    &[Need::Network, Need::RouteLookups, Need::Interfaces],
    &[
        "rp-filter",
        "wireguard-silent",
        "isolated",
        "peer-cut",
        "overlay-cut",
        "one-way",
        "probe-filtered",
    ],
    tunnel_loop,
);

fn tunnel_loop(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else {
        return Vec::new();
    };
    let lookups = facts.lookups().filter(|lookup| lookup.kind == LookupPurpose::Peer);
    let looped: Vec<(&RouteLookup, &str)> =
        lookups.filter_map(|lookup| Some((lookup, tunnel(facts, lookup)?))).collect();
    let Some((first, device)) = looped.first() else {
        return Vec::new();
    };
    let more =
        if looped.len() > 1 { format!(" and {} more", looped.len() - 1) } else { String::new() };
    let mut finding = Finding::new(
        LOOP.id,
        LOOP.severity,
        *device,
        format!(
            "{} at {}{more} is inside the network of pods, {}, and this node reaches that address only through {device}",
            first.whose, first.to, network.networks
        ),
        format!(
            "the kernel drops packets that {device} sends to this address, because they would enter {device} again. Choose a Network without the nodes' addresses, or add a separate route to each node"
        ),
    );
    for (lookup, device) in looped.iter().take(MAX_LISTED) {
        finding = finding.seen(
            format!("packets to {} at {} leave by {device}", lookup.whose, lookup.to),
            format!("ip route get {}", lookup.to),
        );
    }
    let commands: Vec<String> =
        looped.iter().take(MAX_LISTED).filter_map(|(lookup, _)| route(facts, lookup.to)).collect();
    if commands.is_empty() {
        return vec![finding];
    }
    let note = "this change does not survive a reboot: add the same routes where this host's network is configured (netplan, NetworkManager, ifupdown)";
    vec![finding.run_all(commands).note(note).on(HERE)]
}

/// Flannel's device if the kernel would send packets for an address in the pod network to it.
///
/// Never the underlay interface, because it may belong to another flannel network.
fn tunnel<'a>(facts: &'a Facts, lookup: &RouteLookup) -> Option<&'a str> {
    let network = facts
        .network
        .known()
        .filter(|network| network.networks.nets().any(|net| net.contains(&lookup.to)))?;
    let interface = facts.host.interface(lookup.by.as_ref().ok()?.index)?;
    let is_underlay = facts.underlay_name() == Some(&interface.name);
    let is_ours = interface.name.starts_with("flannel")
        && !is_underlay
        && !network.own.nets().any(|own| own.contains(&lookup.to));
    is_ours.then_some(interface.name.as_str())
}

/// Adds a route to a peer's address by the gateway of the most specific existing route on the underlay.
fn route(facts: &Facts, to: IpAddr) -> Option<String> {
    let underlay = facts.underlay()?;
    let routes = facts.host.routes.known()?.iter().filter(|route| {
        route.index == underlay.index && route.via.is_some() && route.net.contains(&to)
    });
    let via = routes.max_by_key(|route| route.net.prefix_len())?.via?;
    let bits = if to.is_ipv6() { 128 } else { 32 };
    Some(format!("ip route add {to}/{bits} via {via} dev {}", word(&underlay.name)))
}
