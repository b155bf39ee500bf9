//! Sysctls that decide whether this node forwards pods' packets.

use crate::check::Check;
use crate::facts::daemon::Launch;
use crate::facts::host::Sysctls;
use crate::facts::{Facts, Network};
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::persist::sysctl;
use crate::shell::word;
use types::Family;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    check(
        "ip-forward",
        Severity::Broken,
        "This node forwards no IPv4 packets",
        |facts| forwarding(facts, Family::V4),
    ),
    check(
        "ipv6-forwarding",
        Severity::Broken,
        "This node forwards no IPv6 packets",
        |facts| forwarding(facts, Family::V6),
    ),
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
    check(
        "rp-filter",
        Severity::Broken,
        "Strict rp_filter drops packets of peers",
        rp_filter,
    ),
];

const fn check(
    id: &'static str,
    severity: Severity,
    title: &'static str,
    judge: fn(&Facts) -> Vec<Finding>,
) -> Check {
    Check {
        id,
        severity,
        title,
        needs: &[Need::Network, Need::Sysctls],
        explains: &[],
        waits: false,
        judge,
    }
}

fn known(facts: &Facts) -> Option<(&Network, &Sysctls)> {
    facts.network.known().zip(facts.host.sysctls.known())
}

/// Who can set it. In the manifests' pod /proc/sys is read-only.
fn by_itself(facts: &Facts) -> &'static str {
    match facts.daemon.launch {
        Launch::Systemd => "flanneld sets it if it is started with --set-sysctls",
        Launch::Kubernetes { .. } => "set it on the node itself: flanneld's pod cannot",
    }
}

fn forwarding(facts: &Facts, family: Family) -> Vec<Finding> {
    let Some((network, sysctls)) = known(facts) else {
        return Vec::new();
    };
    let (check, used, value, name) = match family {
        Family::V4 => (
            "ip-forward",
            network.v4(),
            sysctls.ip_forward,
            "net.ipv4.ip_forward",
        ),
        Family::V6 => (
            "ipv6-forwarding",
            network.v6(),
            sysctls.v6_forwarding,
            "net.ipv6.conf.all.forwarding",
        ),
    };
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
        // First, or a default route learned from a router is lost.
        finding =
            finding.run_all(sysctls.announced.iter().flat_map(|device| {
                sysctl(&format!("net/ipv6/conf/{}/accept_ra", word(device)), 2)
            }));
    }
    vec![finding.run_all(sysctl(name, 1))]
}

const BRIDGED: &str = "pods do not reach pods of the same node through a service address";

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
        finding = finding.seen(
            format!("it could not be loaded: {why}"),
            "modprobe br_netfilter",
        );
    }
    vec![
        finding
            .seen("there is no /proc/sys/net/bridge", "ls /proc/sys/net")
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
        (
            network.v4(),
            sysctls.call_iptables,
            "net.bridge.bridge-nf-call-iptables",
        ),
        (
            network.v6(),
            sysctls.call_ip6tables,
            "net.bridge.bridge-nf-call-ip6tables",
        ),
    ];
    let off = families
        .iter()
        .filter(|(used, value, _)| *used && *value == Some(0));
    off.map(|(_, _, name)| {
        let why = format!("{BRIDGED}; {}", by_itself(facts));
        Finding::new(
            "bridge-nf-call",
            Severity::Degraded,
            *name,
            format!("{name} is 0"),
            why,
        )
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
    let mut findings = Vec::new();
    for device in &sysctls.strict_tunnels {
        findings.push(
            Finding::new(
                "rp-filter",
                // The setting of hardened hosts (rp_filter = 1 for all), which does not affect pods.
                Severity::Risk,
                device,
                format!("rp_filter is strict on {device}"),
                "packets from the tunnel are dropped if this node reaches their source through another interface: those of programs bound to a node's own address",
            )
            .seen(format!("net.ipv4.conf.{device}.rp_filter and net.ipv4.conf.all.rp_filter: the larger one is 1"), format!("sysctl net/ipv4/conf/{device}/rp_filter"))
            .run_all(sysctl(&format!("net/ipv4/conf/{}/rp_filter", word(device)), 2)),
        );
    }
    if let Some(first) = sysctls.astray.first() {
        let underlay = &sysctls.underlay;
        // Only a peer from which nothing arrives shows that packets are dropped: on routed hosts the routes alone prove nothing.
        let lost = super::mesh::paths(facts)
            .iter()
            .any(|path| sysctls.astray.contains(&path.address) && path.is_lost());
        findings.push(
            Finding::new(
                "rp-filter",
                if lost { Severity::Broken } else { Severity::Risk },
                underlay,
                format!(
                    "rp_filter is strict on {underlay}, but the route to {} peer(s), such as {first}, does not use {underlay}",
                    sysctls.astray.len()
                ),
                match lost {
                    true => "packets from these peers are dropped before flannel sees them",
                    false => "packets from these peers are dropped if they arrive by this interface; none is missed so far",
                },
            )
            .seen(format!("{first} is reached by another interface"), format!("ip route get {first}"))
            .run_all(sysctl(&format!("net/ipv4/conf/{}/rp_filter", word(underlay)), 2)),
        );
    }
    findings
}
