//! Probes on the path of pod packets (`--probe-pods`). They find packet losses whose causes no other check detects.

use crate::check::Check;
use crate::facts::Facts;
use crate::facts::pods::{LostPackets, PodPath};
use crate::finding::{Finding, Severity, named};
use crate::need::Need;
use crate::pod_path::bridge;
use crate::shell::word;

/// The most peers that a finding names.
const NAMED: usize = 3;

pub const CHECKS: &[Check] = &[
    Check::new(
        "pods-lost",
        Severity::Broken,
        "Packets of pods are lost on this node, and no other check finds the reason",
        &[Need::Network, Need::Interfaces, Need::PodPaths],
        &[],
        pods_lost,
    )
    .waiting(),
    Check::new(
        "pods-masqueraded",
        Severity::Degraded,
        "Packets of pods reach other nodes with a changed source address",
        &[Need::Network, Need::Interfaces, Need::PodPaths],
        &[],
        pods_masqueraded,
    )
    .waiting(),
    Check::new(
        "probe-address",
        Severity::Risk,
        "A pod has the address that probes on the path of pods need",
        &[Need::Network, Need::Interfaces, Need::PodPaths],
        &[],
        probe_address,
    ),
];

fn paths(facts: &Facts) -> &[PodPath] {
    facts.pods.paths.known().map_or(&[], Vec::as_slice)
}

/// `cni0` if the bridge is unknown.
fn bridge_name(facts: &Facts) -> &str {
    let network = facts.network.known();
    let bridge = network.and_then(|network| bridge(facts.interfaces(), network));
    bridge.map_or("cni0", |bridge| &bridge.name)
}

fn pods_lost(facts: &Facts) -> Vec<Finding> {
    paths(facts).iter().filter_map(|path| lost(facts, path)).collect()
}

fn lost(facts: &Facts, path: &PodPath) -> Option<Finding> {
    let lost = path.lost.iter().filter(|(_, lost)| *lost != LostPackets::Address);
    let (first, lost) = lost.min_by_key(|(_, lost)| *lost)?;
    let whom = if path.others_pass {
        let names: Vec<&str> = path.lost.iter().map(|(name, _)| &**name).collect();
        named(&names, NAMED)
    } else {
        "other nodes".to_owned()
    };
    let what = match lost {
        LostPackets::Everything | LostPackets::Address => {
            format!("packets of this node's pods to {whom}, or the replies, are lost on this node")
        }
        LostPackets::Answers => {
            format!("replies from {whom} to pods of this node are lost on this node")
        }
        LostPackets::Calls => {
            format!("new connections from {whom} to pods of this node are lost on this node")
        }
    };
    let (bridge, address) = (bridge_name(facts), path.address);
    let seen = match lost {
        LostPackets::Everything | LostPackets::Address => {
            "neither replies nor new connections arrived"
        }
        LostPackets::Answers => {
            "new connections from the peer arrived, but the peer's replies did not"
        }
        LostPackets::Calls => {
            "the peer's replies arrived, but new connections from the peer did not"
        }
    };
    let finding = Finding::new(
        "pods-lost",
        Severity::Broken,
        path.family.to_string(),
        what,
        format!("this node's own packets to the same nodes pass. Packets of pods are dropped or changed between {bridge} and flannel's device, and no other check finds the reason"),
    )
    .of(path.family)
    .seen(
        format!("{address} at {bridge} sent two consecutive probes to {first}: {seen}"),
        "flannelctl status -o json",
    )
    .run(format!("timeout 10 tcpdump -c 12 -ni any host {address}"))
    .run("nft list ruleset")
    .run(format!("tc filter show dev {} ingress", word(bridge)))
    .note("the cause is just before the first device on which the packets are missing or have another source or destination");
    Some(if path.others_pass {
        finding.about_peers(path.lost.iter().map(|(name, _)| &**name))
    } else {
        finding
    })
}

fn pods_masqueraded(facts: &Facts) -> Vec<Finding> {
    let masqueraded = |path: &PodPath| {
        let (peer, _) = path.lost.iter().find(|(_, lost)| *lost == LostPackets::Address)?;
        let (bridge, address) = (bridge_name(facts), path.address);
        let iptables = path.family.pick("iptables", "ip6tables");
        Some(
            Finding::new(
                "pods-masqueraded",
                Severity::Degraded,
                path.family.to_string(),
                "packets of this node's pods reach pods of other nodes with a changed source address",
                "a NAT rule changes the source address: network policies, access lists and logs on the other nodes see this node instead of the pod",
            )
            .of(path.family)
            .seen(
                format!("{peer} received a probe from {address} at {bridge} with another source address"),
                "flannelctl status -o json",
            )
            .run(format!("{iptables} -t nat -S | grep -e MASQUERADE -e SNAT"))
            .run("nft list ruleset | grep -e masquerade -e snat")
            .note("exempt packets inside the network from the foreign rule: add ! -d NETWORK to the rule, or a RETURN rule before it. Docker's option --ip-masq=false removes Docker's rule"),
        )
    };
    paths(facts).iter().filter_map(masqueraded).collect()
}

fn probe_address(facts: &Facts) -> Vec<Finding> {
    let taken = |path: &PodPath| {
        let mac = path.taken_by.as_ref()?;
        let (bridge, address) = (bridge_name(facts), path.address);
        Some(
            Finding::new(
                "probe-address",
                Severity::Risk,
                path.family.to_string(),
                format!("a pod has the address {address}, which --probe-pods needs, so flanneld does not probe the path of pods"),
                "the pod got the address before flanneld started to probe, or this node does not use flannel-rs' CNI plugin, which keeps the address free",
            )
            .of(path.family)
            .seen(
                format!("{mac} replies for {address}"),
                format!("bridge fdb show br {}", word(bridge)),
            )
            .run(format!("grep -l . /var/lib/cni/networks/*/{address}"))
            .note("the file that grep prints names the container of this pod: delete the pod, and its replacement gets another address"),
        )
    };
    paths(facts).iter().filter_map(taken).collect()
}
