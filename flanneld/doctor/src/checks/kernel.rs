//! Flannel's objects in the kernel: what is in their way, what others do to them, what is left of earlier ones.

use super::way_out::restart;
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::host::Interface;
use crate::facts::leases::Peer;
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use std::collections::BTreeMap;

/// How often an object has to be put back before somebody else is suspected.
const WAR: u32 = 3;
/// flanneld's routing protocol.
const OURS: u8 = 241;
/// The metric with which a route that is in the way is kept as a second choice.
const SECOND_CHOICE: u32 = 4096;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    check("module", Severity::Broken, "A kernel module is missing", &[Need::Modules], &["foreign-device"], module),
    check("drift-war", Severity::Degraded, "Another program undoes what flanneld does", &[Need::Drift], &["rules"], drift_war),
    check(
        "foreign-route",
        Severity::Broken,
        "A route is in the way",
        &[Need::Network, Need::Routes, Need::Interfaces, Need::Peers],
        &[],
        foreign_route,
    ),
    check("foreign-device", Severity::Broken, "A device is in the way", &[Need::Network, Need::Interfaces], &[], foreign_device),
    check(
        "vtep-mac",
        Severity::Broken,
        "The device has another hardware address than the one that peers use",
        &[Need::OwnLease, Need::Interfaces],
        &[],
        vtep_mac,
    ),
    check("rules", Severity::Degraded, "The traffic rules are not in place", &[Need::Reasons], &[], rules),
    check("leftovers", Severity::Risk, "Something of an earlier backend is left", &[Need::Network, Need::Interfaces, Need::Daemons], &[], leftovers),
];

const fn check(
    id: &'static str,
    severity: Severity,
    title: &'static str,
    needs: &'static [Need],
    explains: &'static [&'static str],
    judge: fn(&Facts) -> Vec<Finding>,
) -> Check {
    Check { id, severity, title, needs, explains, waits: false, judge }
}

fn interfaces(facts: &Facts) -> &[Interface] {
    facts.host.interfaces.known().map_or(&[], Vec::as_slice)
}

/// A device that only flannel names so.
fn is_flannels(interface: &Interface) -> bool {
    let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    let named = interface.name == "flannel0"
        || interface.name.strip_prefix("flannel.").is_some_and(number)
        || interface.name.strip_prefix("flannel-v6.").is_some_and(number);
    named && matches!(interface.kind.as_str(), "vxlan" | "tun")
}

fn module(facts: &Facts) -> Vec<Finding> {
    let missing = facts.host.modules.known().into_iter().flatten();
    missing
        .map(|module| {
            let name = &module.name;
            Finding::new(
                "module",
                Severity::Broken,
                name,
                format!("the kernel module {name} is missing"),
                "some distributions package it separately: linux-modules-extra-$(uname -r) on Ubuntu, kernel-modules-extra on Fedora and RHEL",
            )
            .seen(&module.why, format!("modprobe {name}"))
            .run(format!("modprobe {}", word(name)))
        })
        .collect()
}

fn drift_war(facts: &Facts) -> Vec<Finding> {
    let drift = facts.daemon.drift.known().into_iter().flatten();
    drift
        .filter(|drift| drift.times > WAR)
        .map(|drift| {
            let object = &drift.object;
            let finding = Finding::new(
                "drift-war",
                Severity::Degraded,
                object,
                format!("the {object} was put back {} times in the last ten minutes", drift.times),
                "another program keeps changing it, and packets are lost each time until flanneld has put it back",
            )
            .seen(format!("put back {} times", drift.times), "flanneld");
            match drift.by.as_deref() {
                Some(by @ "NetworkManager") => finding
                    .seen(format!("{by} runs here"), "ps")
                    .run(r"printf '[keyfile]\nunmanaged-devices=interface-name:flannel*\n' > /etc/NetworkManager/conf.d/flannel.conf")
                    .run("systemctl reload NetworkManager"),
                Some(by @ "systemd-networkd") => finding
                    .seen(format!("{by} runs here"), "ps")
                    .run(r"mkdir -p /etc/systemd/networkd.conf.d && printf '[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n' > /etc/systemd/networkd.conf.d/flannel.conf")
                    .run("systemctl restart systemd-networkd"),
                Some(by) => finding.seen(format!("{by} runs here"), "ps"),
                None => finding,
            }
        })
        .collect()
}

fn foreign_route(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known().filter(|network| network.backend.as_deref() != Some("alloc")) else { return Vec::new() };
    let mut findings = Vec::new();
    // There may be ten thousand of both.
    let leases = facts.leases.peers.known().into_iter().flatten();
    let peers: BTreeMap<IpNet, &Peer> = leases.flat_map(|peer| peer.subnets.nets().map(move |net| (net, peer))).collect();
    for route in facts.host.routes.known().into_iter().flatten().filter(|route| route.protocol != OURS) {
        let Some(peer) = peers.get(&route.to) else { continue };
        let interface = route.index.and_then(|index| facts.host.interface(index));
        // host-gw takes over a route to the peer itself, and routes on flannel's devices are Go flannel's.
        let through_peer = route.via.is_some_and(|via| peer.public.contains(&via));
        if through_peer || interface.is_some_and(is_flannels) || network.own.nets().any(|net| net == route.to) {
            continue;
        }
        // Behind a route of ours with a better metric it is a second choice.
        let mut others = facts.host.routes.known().into_iter().flatten();
        if others.any(|other| other.protocol == OURS && other.to == route.to && other.metric < route.metric) {
            continue;
        }
        let device = interface.map(|interface| format!(" dev {}", word(&interface.name))).unwrap_or_default();
        let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
        let (to, metric) = (route.to, route.metric);
        let ip = if to.addr().is_ipv6() { "ip -6" } else { "ip" };
        let onward = if route.via.is_some() { " onlink" } else { "" };
        findings.push(
            Finding::new(
                "foreign-route",
                Severity::Broken,
                to.to_string(),
                format!("a route that is not flannel's leads to {to}, the subnet of {}", peer.name),
                "packets to pods of that node take this route; the command keeps it as a second choice behind flannel's",
            )
            .seen(format!("{to}{via}{device} proto {}", protocol(route.protocol)), format!("{ip} route show {to}"))
            .run(format!("{ip} route add {to}{via}{device}{onward} metric {SECOND_CHOICE} && {ip} route del {to}{via}{device} metric {metric}")),
        );
    }
    findings
}

/// A routing protocol as `ip route` names it.
fn protocol(number: u8) -> String {
    match number {
        2 => "kernel".to_owned(),
        3 => "boot".to_owned(),
        4 => "static".to_owned(),
        16 => "dhcp".to_owned(),
        186 => "bgp".to_owned(),
        188 => "ospf".to_owned(),
        other => other.to_string(),
    }
}

fn foreign_device(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else { return Vec::new() };
    let mut findings = Vec::new();
    let wanted = match (network.backend.as_deref(), network.vni) {
        (Some("udp"), _) => vec!["flannel0".to_owned()],
        (Some("vxlan"), Some(vni)) => vec![format!("flannel.{vni}"), format!("flannel-v6.{vni}")],
        _ => Vec::new(),
    };
    for interface in interfaces(facts) {
        let name = &interface.name;
        if wanted.contains(name) && !is_flannels(interface) {
            let kind = if interface.kind.is_empty() { "hardware" } else { &interface.kind };
            findings.push(
                Finding::new(
                    "foreign-device",
                    Severity::Broken,
                    name,
                    format!("a device of another kind has the name {name}"),
                    "flannel needs that name, and takes no device that is not its own; the command renames it",
                )
                .seen(format!("{name} is of the kind {kind}"), format!("ip -d link show {name}"))
                .run(format!(
                    "ip link set {0} down && ip link set {0} name {1}",
                    word(name),
                    word(&format!("was-{}", name.chars().take(11).collect::<String>()))
                )),
            );
        }
        let ours = network.vni.zip(network.port);
        if interface.vxlan.is_some() && interface.vxlan == ours && !name.starts_with("flannel") {
            let missing = !interfaces(facts).iter().any(|other| wanted.contains(&other.name));
            if missing {
                findings.push(
                    Finding::new(
                        "foreign-device",
                        Severity::Broken,
                        name,
                        format!("the vxlan device {name} has flannel's VNI and UDP port"),
                        "the kernel allows one device of a VNI and port: give that device another VNI, or set another VNI or Port in the Backend of the network configuration",
                    )
                    .seen(format!("VNI {}, UDP port {}", ours.unwrap_or_default().0, ours.unwrap_or_default().1), format!("ip -d link show {name}")),
                );
            }
        }
    }
    findings
}

fn vtep_mac(facts: &Facts) -> Vec<Finding> {
    // A daemon that lives puts it back itself.
    let nobody = facts.daemon.running.known() == Some(&false) || facts.daemon.silent.known().is_some_and(|silent| !silent.is_empty());
    let Some((device, published)) = facts.leases.own.known().and_then(|own| own.vtep.as_ref()).filter(|_| nobody) else { return Vec::new() };
    let Some(interface) = facts.host.named(device).filter(|interface| !interface.mac.eq_ignore_ascii_case(published)) else { return Vec::new() };
    vec![
        Finding::new(
            "vtep-mac",
            Severity::Broken,
            device,
            format!("{device} has another hardware address than the one that the peers use"),
            "packets from other nodes arrive and are dropped; systemd-udevd does this (MACAddressPolicy), and flanneld puts it right where it runs",
        )
        .seen(format!("{} here, {published} in the lease", interface.mac), format!("ip link show {device}"))
        .run(restart(facts)),
    ]
}

fn rules(facts: &Facts) -> Vec<Finding> {
    let Some(reason) = facts.daemon.reasons.known().and_then(|reasons| reasons.get("rules")) else { return Vec::new() };
    let finding = Finding::new(
        "rules",
        Severity::Degraded,
        "",
        "the traffic rules are not in place",
        "pods may not reach addresses outside of the network, and a firewall may drop packets between pods",
    )
    .seen(reason, "readyz");
    vec![match reason {
        text if text.contains("xtables.lock") => finding.run("fuser -v /run/xtables.lock"),
        text if text.contains("cannot run") => finding.seen("the program is not installed", "command -v iptables nft"),
        _ => finding,
    }]
}

fn leftovers(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else { return Vec::new() };
    // A second daemon's devices are nobody's leftovers.
    if facts.host.daemons.known().is_none_or(|daemons| *daemons > 1) {
        return Vec::new();
    }
    let (Some(backend), vni) = (network.backend.as_deref(), network.vni) else { return Vec::new() };
    let used = |name: &str| match backend {
        "udp" => name == "flannel0",
        "vxlan" => vni.is_none_or(|vni| name == format!("flannel.{vni}") || name == format!("flannel-v6.{vni}")),
        _ => false,
    };
    let left = interfaces(facts).iter().filter(|interface| is_flannels(interface) && !used(&interface.name));
    left.map(|interface| {
        let name = &interface.name;
        Finding::new(
            "leftovers",
            Severity::Risk,
            name,
            format!("{name} is left of an earlier configuration of flannel"),
            format!("the backend is {backend} now and does not use this device; routes through it would lose packets"),
        )
        .seen(format!("{name}, {}", interface.kind), "ip -d link")
        // Another network's daemon, stopped for a moment, may own it: to delete it is for who knows.
        .run(format!("ip -details link show dev {}", word(name)))
    })
    .collect()
}
