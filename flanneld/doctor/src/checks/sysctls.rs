//! Checks of the sysctls that decide whether this node forwards pod packets.

use crate::check::Check;
use crate::facts::daemon::Launch;
use crate::facts::host::Sysctls;
use crate::facts::{Facts, Network};
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::persist::sysctl;
use crate::shell::word;
use ipnet::IpNet;
use types::Family;

pub const CHECKS: &[Check] = &[
    Check {
        explains: &["pod-route", "pods-lost"],
        ..check("ip-forward", Severity::Broken, "This node forwards no IPv4 packets", |facts| {
            forwarding(facts, Family::V4)
        })
    },
    Check {
        explains: &["pod-route", "pods-lost"],
        ..check(
            "ipv6-forwarding",
            Severity::Broken,
            "This node forwards no IPv6 packets",
            |facts| forwarding(facts, Family::V6),
        )
    },
    check(
        "br-netfilter",
        Severity::Degraded,
        "The kernel module br_netfilter is missing",
        br_netfilter,
    ),
    check(
        "bridge-nf-call",
        Severity::Degraded,
        "Service rules do not see packets on the bridge",
        bridge_nf_call,
    ),
    Check {
        explains: &["encap-blocked", "overlay-cut", "one-way", "pods-lost"],
        ..check("rp-filter", Severity::Broken, "Strict rp_filter drops packets of peers", rp_filter)
    },
];

const fn check(
    id: &'static str,
    severity: Severity,
    title: &'static str,
    judge: fn(&Facts) -> Vec<Finding>,
) -> Check {
    Check::new(id, severity, title, &[Need::Network, Need::Sysctls], &[], judge)
}

fn known(facts: &Facts) -> Option<(&Network, &Sysctls)> {
    facts.network.known().zip(facts.host.sysctls.known())
}

/// How flanneld or the operator can set a sysctl that `--set-sysctls` covers. In the pod of the manifests, /proc/sys is read-only.
fn by_itself(facts: &Facts) -> &'static str {
    match facts.daemon.launch {
        Launch::Systemd => "flanneld sets this sysctl if you start flanneld with --set-sysctls",
        Launch::Kubernetes { .. } => {
            "set this sysctl on the node itself, because flanneld's pod cannot set it"
        }
    }
}

fn forwarding(facts: &Facts, family: Family) -> Vec<Finding> {
    let Some((network, sysctls)) = known(facts) else {
        return Vec::new();
    };
    let (check, used, value, name) = match family {
        Family::V4 => ("ip-forward", network.v4(), sysctls.ip_forward, "net.ipv4.ip_forward"),
        Family::V6 => {
            ("ipv6-forwarding", network.v6(), sysctls.v6_forwarding, "net.ipv6.conf.all.forwarding")
        }
    };
    if family == Family::V4 && used && value == Some(1) {
        return sysctls.closed.iter().map(|device| closed(facts, device)).collect();
    }
    if !used || value != Some(0) {
        return Vec::new();
    }
    let why = format!(
        "this node forwards no {family} packets between pods and other nodes; {}",
        by_itself(facts)
    );
    let mut finding = Finding::new(check, Severity::Broken, "", format!("{name} is 0"), why)
        .seen(format!("{name} = 0"), format!("sysctl {name}"));
    if family.is_v6() {
        // accept_ra has to be set before forwarding. Otherwise the kernel removes a default route that it learned from a router.
        finding =
            finding.run_all(sysctls.announced.iter().flat_map(|device| {
                sysctl(&format!("net/ipv6/conf/{}/accept_ra", word(device)), 2)
            }));
    }
    vec![finding.run_all(sysctl(name, 1))]
}

/// The device does not forward packets although the host does.
fn closed(facts: &Facts, device: &str) -> Finding {
    let name = format!("net/ipv4/conf/{}/forwarding", word(device));
    let default = "net.ipv4.conf.default.forwarding";
    Finding::new(
        "ip-forward",
        Severity::Broken,
        device,
        format!("net.ipv4.conf.{device}.forwarding is 0"),
        format!(
            "although ip_forward is 1, this node forwards no pod packets that arrive on {device}; new devices get the value of {default}; {}",
            by_hand(facts)
        ),
    )
    .of(Family::V4)
    .seen(
        format!("net.ipv4.conf.{device}.forwarding = 0"),
        format!("sysctl {name}"),
    )
    .run_all(sysctl(&name, 1))
    .run_all(sysctl(default, 1))
}

/// About a sysctl that `--set-sysctls` does not cover.
fn by_hand(facts: &Facts) -> &'static str {
    match facts.daemon.launch {
        Launch::Systemd => "flanneld does not set this sysctl",
        Launch::Kubernetes { .. } => {
            "set this sysctl on the node itself, because flanneld's pod cannot set it"
        }
    }
}

const BRIDGED: &str = "pods do not reach pods of the same node through a Service address";

fn br_netfilter(facts: &Facts) -> Vec<Finding> {
    let Some((network, sysctls)) = known(facts) else {
        return Vec::new();
    };
    if network.nftables || sysctls.br_netfilter {
        return Vec::new();
    }
    let mut finding = Finding::new(
        "br-netfilter",
        Severity::Degraded,
        "",
        "the kernel module br_netfilter is not loaded",
        BRIDGED,
    );
    if let Some(why) = &sysctls.module {
        finding = finding.seen(format!("cannot load the module: {why}"), "modprobe br_netfilter");
    }
    vec![
        finding
            .seen("/proc/sys/net/bridge does not exist", "ls /proc/sys/net")
            .run("modprobe br_netfilter")
            .run("echo br_netfilter > /etc/modules-load.d/flannel.conf"),
    ]
}

fn bridge_nf_call(facts: &Facts) -> Vec<Finding> {
    let Some((network, sysctls)) = known(facts) else {
        return Vec::new();
    };
    if network.nftables || !sysctls.br_netfilter {
        return Vec::new();
    }
    let families = [
        (network.v4(), sysctls.call_iptables, "net.bridge.bridge-nf-call-iptables"),
        (network.v6(), sysctls.call_ip6tables, "net.bridge.bridge-nf-call-ip6tables"),
    ];
    let off = families.iter().filter(|(used, value, _)| *used && *value == Some(0));
    off.map(|(_, _, name)| {
        let why = format!("{BRIDGED}; {}", by_itself(facts));
        Finding::new("bridge-nf-call", Severity::Degraded, *name, format!("{name} is 0"), why)
            .seen(format!("{name} = 0"), format!("sysctl {name}"))
            .run_all(sysctl(name, 1))
    })
    .collect()
}

fn rp_filter(facts: &Facts) -> Vec<Finding> {
    let Some((network, sysctls)) = known(facts) else {
        return Vec::new();
    };
    if !network.v4() {
        return Vec::new();
    }
    // Only a peer from which nothing arrives proves that the kernel drops packets. On routed hosts, asymmetric routes are normal.
    let lost = facts
        .paths()
        .iter()
        .filter(|path| sysctls.astray.contains(&path.address) && path.is_lost());
    let lost: Vec<IpNet> = lost.map(|path| path.subnet).collect();
    let Some(first) = sysctls.astray.first().filter(|_| !lost.is_empty()) else {
        return Vec::new();
    };
    let underlay = &sysctls.underlay;
    vec![
        Finding::new(
            "rp-filter",
            Severity::Broken,
            underlay,
            format!(
                "rp_filter is strict on {underlay}, but the route to {} peer(s), such as {first}, does not use {underlay}",
                sysctls.astray.len()
            ),
            "the kernel drops packets from these peers before flannel receives them",
        )
        .within(lost)
        .seen(
            format!("the route to {first} uses another interface"),
            format!("ip route get {first}"),
        )
        .run_all(sysctl(
            &format!("net/ipv4/conf/{}/rp_filter", word(underlay)),
            2,
        )),
    ]
}
