//! The path of pod packets through this host: the bridge, the sysctls of devices, routes, and policy routing rules.
//!
//! Probes between hosts take another path, so they do not show faults of this one.

use crate::check::Check;
use crate::facts::host::{FLANNELD, Interface, PodRoute, PolicyRule, RouteError};
use crate::facts::{Facts, Network};
use crate::finding::{Finding, Severity, named};
use crate::need::Need;
use crate::pod_path::{bridge, detached, gateway, has_ports, outside};
use crate::shell::word;
use ipnet::IpNet;
use std::collections::BTreeSet;
use types::Family;

const AFTER_REBOOT: &str = "after a reboot the bridge plugin creates the bridge with the first pod";
/// The bridge in flannel's CNI configuration.
const BRIDGE: &str = "cni0";
/// The most peers that a finding names.
const NAMED: usize = 3;

pub const CHECKS: &[Check] = &[
    Check::new(
        "pod-bridge",
        Severity::Broken,
        "The pods' bridge is down, or lacks its address",
        &[Need::Network, Need::Interfaces],
        &["pod-route", "pods-lost"],
        pod_bridge,
    ),
    Check::new(
        "pod-route",
        Severity::Broken,
        "Pods have no route to other nodes or to each other",
        &[Need::Network, Need::Interfaces, Need::PodRoutes, Need::PolicyRules],
        &["pods-lost"],
        pod_route,
    )
    // flanneld adds the routes only after it has read the leases.
    .waiting(),
];

fn pod_bridge(facts: &Facts) -> Vec<Finding> {
    let (Some(network), all) = (facts.network.known(), facts.interfaces()) else {
        return Vec::new();
    };
    if let Some(finding) = pods_detached(all, network) {
        return vec![finding];
    }
    // Without pods, the bridge plugin sets up the bridge together with the next pod.
    let Some(bridge) = bridge(all, network).filter(|bridge| has_ports(all, bridge)) else {
        return Vec::new();
    };
    let name = &bridge.name;
    if !bridge.up {
        return vec![
            Finding::new(
                "pod-bridge",
                Severity::Broken,
                name,
                format!("the bridge {name} is down"),
                "no packet of this node's pods leaves the bridge",
            )
            .seen(format!("{name} is not UP"), format!("ip link show {}", word(name)))
            .run(format!("ip link set dev {} up", word(name)))
            .note(AFTER_REBOOT),
        ];
    }
    let mut findings = Vec::new();
    for own in network.own.nets() {
        let family = Family::from(own.addr());
        // An address outside of the subnet has a check of its own.
        let has_one =
            bridge.nets().any(|net| Family::from(net.addr()) == family && !is_local(&net));
        let Some(gateway) = gateway(&own).filter(|_| !has_one) else {
            continue;
        };
        let ip = family.pick("ip", "ip -6");
        findings.push(
            Finding::new(
                "pod-bridge",
                Severity::Broken,
                format!("{name} {family}"),
                format!("the bridge {name} has no {family} address"),
                format!(
                    "{} is the gateway of this node's pods: without this address, the pods reach only each other",
                    gateway.addr()
                ),
            )
            .of(family)
            .seen(
                format!("no {family} address"),
                format!("{ip} address show dev {}", word(name)),
            )
            .run(format!("{ip} address add {gateway} dev {}", word(name)))
            .note(AFTER_REBOOT),
        );
    }
    findings
}

/// Somebody deleted the bridge of these pods. It may have come back with a new pod.
fn pods_detached(all: &[Interface], network: &Network) -> Option<Finding> {
    let pods = detached(all, network);
    let first = pods.first()?;
    let name = BRIDGE;
    let is_gone = all.iter().all(|interface| interface.name != name);
    // Another bridge than that of the plugin has its pods from another program.
    if bridge(all, network).map_or(!is_gone, |bridge| bridge.name != name) {
        return None;
    }
    let finding = Finding::new(
        "pod-bridge",
        Severity::Broken,
        format!("{name} pods"),
        format!("{} pods are no longer connected to the bridge {name}", pods.len()),
        "somebody deleted the bridge: the pods reach nobody until they are connected again or restarted",
    )
    .seen(
        format!("{} belongs to no bridge and has no address", first.name),
        "ip -d link show type veth",
    );
    let mut made: Vec<String> = Vec::new();
    if is_gone {
        made.push(format!("ip link add {name} mtu {} type bridge", first.mtu));
        made.extend(network.own.nets().filter_map(|own| {
            let ip = Family::from(own.addr()).pick("ip", "ip -6");
            Some(format!("{ip} address add {} dev {name}", gateway(&own)?))
        }));
        made.push(format!("ip link set dev {name} up"));
    }
    made.extend(
        pods.iter().map(|pod| format!("ip link set dev {} master {name}", word(&pod.name))),
    );
    Some(finding.run_all(made).note(
        "if the bridge has hairpin mode in the CNI configuration, restart the pods instead: new ports lack this mode",
    ))
}

fn is_local(net: &IpNet) -> bool {
    netstate::host::is_link_local(net.addr())
}

/// Fault of a packet's route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// The kernel does not forward the packet, for this reason.
    Nowhere(String),
    /// The kernel forwards the packet to this interface.
    Elsewhere(String),
}

/// `None` if the packet leaves by the right interface.
fn wrong(facts: &Facts, network: &Network, bridge: &Interface, route: &PodRoute) -> Option<Wrong> {
    let all = facts.interfaces();
    let family = Family::from(route.packet.packet.to);
    let underlay = facts.underlay_name();
    let answer = match &route.by {
        Ok(answer) => answer,
        // The kernel did not reply, so nothing is known.
        Err(RouteError::Unanswered) => return None,
        Err(error) => return Some(Wrong::Nowhere(error.to_string())),
    };
    let right = if route.packet.out {
        let tunnel = outside(all, network, family, None);
        if tunnel.is_none() && network.device(family).is_some() {
            // The cause is flannel's missing device, not a fault of routes.
            return None;
        }
        let underlay = all.iter().find(|interface| Some(interface.name.as_str()) == underlay);
        let by_tunnel = tunnel.is_some_and(|tunnel| tunnel.index == answer.index);
        let by_underlay = underlay.is_some_and(|underlay| underlay.index == answer.index);
        // Without a tunnel device, routes to nodes may use any of several uplinks.
        by_tunnel
            || by_underlay
            || tunnel.is_none()
                && facts.host.interface(answer.index).is_some_and(crate::facts::host::joins_hosts)
    } else {
        answer.index == bridge.index
    };
    let name = facts
        .host
        .interface(answer.index)
        .map_or_else(|| answer.index.to_string(), |known| known.name.clone());
    (!right).then_some(Wrong::Elsewhere(name))
}

/// The policy routing rule that misroutes the packet; `None` if it is a default rule of the kernel.
fn culprit<'a>(facts: &'a Facts, route: &PodRoute) -> Option<&'a PolicyRule> {
    let packet = &route.packet.packet;
    let incoming = facts.host.interface(packet.incoming);
    let incoming = incoming.map(|interface| interface.name.as_str());
    facts
        .host
        .policy_rules
        .known()?
        .iter()
        .find(|rule| rule.is_about(packet.from, packet.to, incoming) && rule.decides(packet.to))
        .filter(|rule| !rule.is_standard())
}

fn pod_route(facts: &Facts) -> Vec<Finding> {
    let (Some(network), Some(routes)) = (facts.network.known(), facts.host.pod_routes.known())
    else {
        return Vec::new();
    };
    let all = facts.interfaces();
    let Some(bridge) = bridge(all, network) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for family in Family::ALL {
        for out in [true, false] {
            let of_way = || {
                routes.iter().filter(|route| {
                    Family::from(route.packet.packet.to) == family && route.packet.out == out
                })
            };
            let bad: Vec<(&PodRoute, Wrong)> = of_way()
                .filter_map(|route| Some((route, wrong(facts, network, bridge, route)?)))
                .collect();
            let kinds: BTreeSet<&Wrong> = bad.iter().map(|(_, wrong)| wrong).collect();
            let count = of_way().count();
            for kind in kinds {
                let alike: Vec<&PodRoute> = bad
                    .iter()
                    .filter(|(_, wrong)| wrong == kind)
                    .map(|(route, _)| *route)
                    .collect();
                findings.extend(misrouted(facts, bridge, kind, &alike, count));
            }
        }
    }
    findings
}

/// The packets are misrouted in the same way; `count` is the number of packets whose routes the doctor looked up.
fn misrouted(
    facts: &Facts,
    bridge: &Interface,
    wrong: &Wrong,
    alike: &[&PodRoute],
    count: usize,
) -> Option<Finding> {
    let first = alike.first()?;
    let packet = &first.packet.packet;
    let out = first.packet.out;
    let family = Family::from(packet.to);
    let all_of_them = alike.len() == count;
    let whose = if all_of_them {
        "other nodes".to_owned()
    } else {
        let names = alike.iter().map(|route| route.packet.peer.name.as_str());
        named(&names.collect::<Vec<_>>(), NAMED)
    };
    let direction = if out { "to" } else { "from" };
    let fate = match wrong {
        Wrong::Nowhere(why) => format!("do not pass the routing of this host: {why}"),
        Wrong::Elsewhere(name) => format!("go out by {name}"),
    };
    let about = format!(
        "{direction} {} {family}",
        if all_of_them { "all" } else { &first.packet.peer.name }
    );
    let incoming = facts.host.interface(packet.incoming);
    let incoming = incoming.map_or_else(|| packet.incoming.to_string(), |known| known.name.clone());
    let ip = family.pick("ip", "ip -6");
    let show = format!("{ip} route get {} from {} iif {}", packet.to, packet.from, word(&incoming));
    let finding = Finding::new(
        "pod-route",
        Severity::Broken,
        about,
        format!("packets of pods {direction} {whose} {fate}"),
        "probes do not show the fault, because the host itself sends them",
    )
    .of(family)
    .seen(
        match wrong {
            Wrong::Nowhere(why) => format!("from {} to {}: {why}", packet.from, packet.to),
            Wrong::Elsewhere(name) => {
                format!("packets from {} to {} leave by {name}", packet.from, packet.to)
            }
        },
        show,
    );
    with_remedy(finding, facts, bridge, first)
}

fn with_remedy(
    finding: Finding,
    facts: &Facts,
    bridge: &Interface,
    first: &PodRoute,
) -> Option<Finding> {
    let packet = &first.packet.packet;
    let out = first.packet.out;
    let family = Family::from(packet.to);
    let ip = family.pick("ip", "ip -6");
    Some(match culprit(facts, first) {
        Some(rule) => by_rule(finding, facts, rule, first),
        None if !out => {
            let own = facts.network.known()?.own.nets();
            let own = own.into_iter().find(|own| Family::from(own.addr()) == family)?;
            let net = own.trunc();
            finding
                .run(format!(
                    "{ip} route replace {net} dev {} proto kernel scope link src {}",
                    word(&bridge.name),
                    gateway(&own)?.addr()
                ))
                .note(AFTER_REBOOT)
        }
        None => match foreign_route(facts, first) {
            Some((net, device)) => finding
                .seen(
                    format!("{net} through {device}, a route that flannel did not add"),
                    format!("{ip} route show match {}", packet.to),
                )
                .run(format!("{ip} route delete {net} dev {}", word(&device)))
                .note("the program that added the route may add it again"),
            None => finding.run(format!("{ip} route show match {}", packet.to)),
        },
    })
}

/// Another program's route to a part of a peer's subnet, with its device.
fn foreign_route(facts: &Facts, route: &PodRoute) -> Option<(IpNet, String)> {
    let to = route.packet.packet.to;
    let found = facts
        .host
        .routes
        .known()?
        .iter()
        .filter(|known| known.net.contains(&to))
        .max_by_key(|known| known.net.prefix_len())?;
    let device = facts.host.interface(found.index)?;
    let narrower = found.net.prefix_len() > route.packet.peer.subnet.prefix_len();
    (found.protocol != FLANNELD && narrower).then(|| (found.net, device.name.clone()))
}

/// The command makes pod packets use the table `main` before the rule.
fn by_rule(finding: Finding, facts: &Facts, rule: &PolicyRule, route: &PodRoute) -> Finding {
    let family = Family::from(route.packet.packet.to);
    let ip = family.pick("ip", "ip -6");
    let finding = finding.seen(format!("the rule `{rule}`"), format!("{ip} rule"));
    let network = facts
        .network
        .known()
        .into_iter()
        .flat_map(|network| network.networks.nets())
        .find(|net| Family::from(net.addr()) == family);
    // No rule fits before a rule of priority 1: the rule of the table `local` has priority 0.
    let Some((network, before)) =
        network.zip(rule.priority.checked_sub(1).filter(|before| *before > 0))
    else {
        return finding;
    };
    finding
        .run(format!(
            "{ip} rule add priority {before} to {network} lookup main"
        ))
        .note("this change does not survive a reboot: configure the new rule where the other rule is configured")
}
