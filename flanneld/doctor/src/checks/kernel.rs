//! Checks of flannel's objects in the kernel: conflicting routes and changes by other programs.

use super::devices::is_flannels;
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::daemon::Drifting;
use crate::facts::host::{FLANNELD, Interface, Route};
use crate::facts::leases::Peer;
use crate::finding::{Finding, SEVERAL, Severity, capped};
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use netstate::report::protocols::Protocols;
use std::collections::{BTreeMap, BTreeSet};
use types::Detail;

/// Above this number of repairs, the check suspects that another program changes the object.
const MIN_REPAIRS: u32 = 3;
/// The most objects with separate findings.
const MAX_ALIKE: usize = 3;
/// Metric that makes a conflicting route a fallback behind flannel's route.
const SECOND_CHOICE: u32 = 4096;

/// One finding covers all conflicting routes if there are more.
const MAX_LISTED: usize = 3;

pub const CHECKS: &[Check] = &[
    Check::new(
        "drift-war",
        Severity::Degraded,
        "Another program undoes flanneld's changes",
        &[Need::Drift],
        &["rules"],
        drift_war,
    ),
    Check::new(
        "foreign-route",
        Severity::Broken,
        "A route conflicts with flannel's route",
        &[Need::Network, Need::Routes, Need::Interfaces, Need::Peers],
        &[],
        foreign_route,
    ),
    Check::new(
        "rules",
        Severity::Degraded,
        "The traffic rules are not in place",
        &[Need::Reasons],
        &[],
        rules,
    ),
];

fn drift_war(facts: &Facts) -> Vec<Finding> {
    let drift = facts.daemon.drift.known().into_iter().flatten();
    let found = drift
        .filter(|drift| drift.times > MIN_REPAIRS)
        .map(|drift| {
            let object = &drift.object;
            let finding = Finding::new(
                "drift-war",
                Severity::Degraded,
                object,
                format!("flanneld restored the {object} {} times in the last ten minutes", drift.times),
                "another program keeps changing this object, and packets are lost each time until flanneld restores it",
            )
            .seen(format!("restored {} times", drift.times), "flanneld");
            let others = facts.host.daemons.known().filter(|daemons| **daemons > 1);
            let finding = match others {
                Some(daemons) => finding.seen(format!("{daemons} flanneld processes run on this node"), "ps"),
                None => finding,
            };
            let mut installed: Vec<&str> = facts.host.foreign.known().into_iter().flatten().map(|object| object.program.as_str()).collect();
            installed.dedup();
            let finding =
                installed.into_iter().fold(finding, |finding, program| finding.seen(format!("{program} is, or was, installed on this node"), "ip link"));
            drift.by.iter().fold(finding, |finding, by| hands_off(finding.seen(format!("{by} runs on this node"), "ps"), by, drift.kind))
        })
        .collect();
    // One program may change many objects, so the number of findings is limited.
    capped(found, MAX_ALIKE)
}

/// Keeps a program from changing flannel's objects. NetworkManager has a single list of unmanaged devices: `+=` extends it, but `=` would replace
/// earlier settings.
fn hands_off(finding: Finding, program: &str, kind: Drifting) -> Finding {
    match (program, kind) {
        ("NetworkManager", _) => finding
            .run(r"printf '[keyfile]\nunmanaged-devices+=interface-name:flannel*\n' > /etc/NetworkManager/conf.d/flannel.conf")
            .run("systemctl reload NetworkManager"),
        ("systemd-networkd", Drifting::Route) => finding
            .run(r"mkdir -p /etc/systemd/networkd.conf.d && printf '[Network]\nManageForeignRoutes=no\n' > /etc/systemd/networkd.conf.d/flannel.conf")
            .run("systemctl restart systemd-networkd"),
        // udev sets the hardware address, and reads networkd's folder for it.
        ("systemd-networkd", Drifting::Link) => finding
            .run(r"printf '[Match]\nOriginalName=flannel*\n[Link]\nMACAddressPolicy=none\n' > /etc/systemd/network/10-flannel.link")
            .run(UNMANAGED)
            .run("udevadm control --reload && networkctl reload"),
        ("systemd-networkd", Drifting::Other) => finding.run(UNMANAGED).run("networkctl reload"),
        _ => finding,
    }
}

/// Makes systemd-networkd ignore flannel's devices and the objects on them.
const UNMANAGED: &str = r"printf '[Match]\nName=flannel*\n[Link]\nUnmanaged=yes\n' > /etc/systemd/network/10-flannel.network";

fn foreign_route(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts
        .network
        .known()
        .filter(|network| network.backend.is_none_or(|backend| backend.carries))
    else {
        return Vec::new();
    };
    let routes = facts.host.routes.known().map_or(&[][..], Vec::as_slice);
    let foreign = || routes.iter().filter(|route| route.protocol != FLANNELD);
    // There may be thousands of peers, but few other routes.
    let nets: BTreeSet<IpNet> = foreign().map(|route| route.net).collect();
    let peers = facts.peers().flat_map(|peer| peer.subnets.nets().map(move |net| (net, peer)));
    let peers: BTreeMap<IpNet, &Peer> = peers.filter(|(net, _)| nets.contains(net)).collect();
    let ours = best_metrics(routes.iter().filter(|route| nets.contains(&route.net)));
    let mut findings = Vec::new();
    for route in foreign() {
        let Some(peer) = peers.get(&route.net) else {
            continue;
        };
        let interface = facts.host.interface(route.index);
        // host-gw takes over routes through the peer itself. Routes on flannel's devices are Go flannel's.
        let through_peer = route.via.is_some_and(|via| peer.addresses().any(|ip| ip == via));
        // If flannel's route has a lower metric, the other route is only a fallback.
        let beaten = ours.get(&route.net).is_some_and(|metric| *metric < route.metric);
        if through_peer
            || beaten
            || interface.is_some_and(|interface| is_flannels(facts, interface))
            || network.own.nets().any(|net| net == route.net)
        {
            continue;
        }
        findings.push(foreign_route_to(route, peer, interface));
    }
    if findings.len() <= MAX_LISTED {
        return findings;
    }
    // A routing daemon may add a route to every peer.
    let finding = Finding::new(
        "foreign-route",
        Severity::Broken,
        SEVERAL,
        format!("routes that are not flannel's lead to {} subnets of other nodes", findings.len()),
        "packets to pods of other nodes take these foreign routes; give the routes a larger metric where they are configured",
    );
    let shown = findings
        .into_iter()
        .take(MAX_LISTED)
        .filter_map(|finding| finding.evidence.into_iter().next());
    let finding = shown.fold(finding, |finding, seen| finding.seen(seen.text, seen.from));
    vec![finding.run("flannelctl routes")]
}

/// The lowest metric of flannel's routes, by destination.
fn best_metrics<'a>(routes: impl Iterator<Item = &'a Route>) -> BTreeMap<IpNet, u32> {
    let mut ours: BTreeMap<IpNet, u32> = BTreeMap::new();
    for route in routes.filter(|route| route.protocol == FLANNELD) {
        ours.entry(route.net)
            .and_modify(|metric| *metric = route.metric.min(*metric))
            .or_insert(route.metric);
    }
    ours
}

fn foreign_route_to(route: &Route, peer: &Peer, interface: Option<&Interface>) -> Finding {
    let device =
        interface.map(|interface| format!(" dev {}", word(&interface.name))).unwrap_or_default();
    let via = match route.via {
        Some(via) if via.is_ipv6() && route.net.addr().is_ipv4() => format!(" via inet6 {via}"),
        Some(via) => format!(" via {via}"),
        None => String::new(),
    };
    let (to, metric) = (route.net, route.metric);
    let ip = if to.addr().is_ipv6() { "ip -6" } else { "ip" };
    let onward = if route.via.is_some() { " onlink" } else { "" };
    // A route with several next hops has neither field. Only the program that added it can add it again.
    let is_plain = route.via.is_some() || route.index != 0;
    let why = match is_plain {
        true => {
            "packets to pods of the peer take this foreign route; the command keeps the route as a fallback behind flannel's route"
        }
        false => {
            "packets to pods of the peer take this foreign route, which has several next hops. Delete the route, or give it a larger metric where it is configured"
        }
    };
    let what = format!("a route that is not flannel's leads to {to}, the subnet of {}", peer.name);
    let finding = Finding::new("foreign-route", Severity::Broken, to.to_string(), what, why).seen(
        format!("{to}{via}{device} proto {}", Protocols::default().name(route.protocol)),
        format!("{ip} route show {to}"),
    );
    match is_plain {
        true => finding
            .run(format!("{ip} route add {to}{via}{device}{onward} metric {SECOND_CHOICE} && {ip} route del {to}{via}{device} metric {metric}"))
            .note("a reboot, or a program that adds the route again, undoes this change: set the new metric where the route is configured"),
        false => finding.run(format!("{ip} route show {to}")),
    }
}

fn rules(facts: &Facts) -> Vec<Finding> {
    let Some(reason) = facts.reason("rules") else {
        return Vec::new();
    };
    let finding = Finding::new(
        "rules",
        Severity::Degraded,
        "",
        "the traffic rules are not in place",
        "pods possibly cannot reach addresses outside of the network, and a firewall may drop packets between pods",
    )
    .seen(reason.to_string(), "readyz");
    let lock = reason.details().find_map(|detail| {
        if let Detail::RulesLocked { file } = detail { Some(file) } else { None }
    });
    let missing = reason.details().any(|detail| matches!(detail, Detail::ProgramMissing { .. }));
    vec![match lock {
        Some(file) => finding.run(format!("fuser -v {}", word(&file.display().to_string()))),
        None if missing => finding.seen(
            "the program for the traffic rules, iptables or nft, is not installed",
            "command -v iptables nft",
        ),
        None => finding,
    }]
}
