//! What the probes on the path of pods' packets found (`--probe-pods`). They prove what the other checks compute: what is lost for no reason that is known
//! has a finding of its own.

use crate::check::Check;
use crate::facts::Facts;
use crate::facts::pods::{Lost, PodPath};
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::pod_path::bridge;
use crate::shell::word;

/// So many peers are named in a finding.
const NAMED: usize = 3;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    Check {
        id: "pods-lost",
        severity: Severity::Broken,
        title: "Packets of pods are lost on this node, for no reason that other checks see",
        needs: &[Need::Network, Need::Interfaces, Need::PodPaths],
        explains: &[],
        waits: true,
        judge: pods_lost,
    },
    Check {
        id: "pods-masqueraded",
        severity: Severity::Degraded,
        title: "Packets of pods reach other nodes with another address",
        needs: &[Need::Network, Need::Interfaces, Need::PodPaths],
        explains: &[],
        waits: true,
        judge: pods_masqueraded,
    },
    Check {
        id: "probe-address",
        severity: Severity::Risk,
        title: "A pod has the address of the probes on the path of pods",
        needs: &[Need::Network, Need::Interfaces, Need::PodPaths],
        explains: &[],
        waits: false,
        judge: probe_address,
    },
];

fn paths(facts: &Facts) -> &[PodPath] {
    facts.pods.paths.known().map_or(&[], Vec::as_slice)
}

/// The name of the pods' bridge.
fn bridge_name(facts: &Facts) -> &str {
    let interfaces = facts.host.interfaces.known();
    interfaces
        .zip(facts.network.known())
        .and_then(|(interfaces, network)| bridge(interfaces, network))
        .map_or("cni0", |bridge| &bridge.name)
}

fn pods_lost(facts: &Facts) -> Vec<Finding> {
    paths(facts)
        .iter()
        .filter_map(|path| lost(facts, path))
        .collect()
}

fn lost(facts: &Facts, path: &PodPath) -> Option<Finding> {
    let lost = path.lost.iter().filter(|(_, lost)| *lost != Lost::Address);
    let (first, lost) = lost.min_by_key(|(_, lost)| *lost)?;
    let whom = if path.others_pass {
        let mut names: Vec<&str> = path.lost.iter().map(|(name, _)| &**name).collect();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        match more {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    } else {
        "other nodes".to_owned()
    };
    let what = match lost {
        Lost::Everything | Lost::Address => format!(
            "packets of this node's pods to {whom}, or their answers, are lost on this node"
        ),
        Lost::Answers => format!("answers from {whom} to pods of this node are lost on this node"),
        Lost::Calls => {
            format!("new connections from {whom} to pods of this node are lost on this node")
        }
    };
    let (bridge, address) = (bridge_name(facts), path.address);
    let seen = match lost {
        Lost::Everything | Lost::Address => "no answer and no call of its own came",
        Lost::Answers => "its own call came, and no answer",
        Lost::Calls => "its answer came, and no call of its own",
    };
    let finding = Finding::new(
        "pods-lost",
        Severity::Broken,
        path.family.to_string(),
        what,
        format!("this node's own packets to the same nodes pass: between {bridge} and flannel's device something drops, or changes, what pods send, and no other check knows it"),
    )
    .of(path.family)
    .seen(
        format!("{address} at {bridge} asked {first} twice in a row: {seen}"),
        "flannelctl status -o json",
    )
    .run(format!("timeout 10 tcpdump -c 12 -ni any host {address}"))
    .run("nft list ruleset")
    .run(format!("tc filter show dev {} ingress", word(bridge)))
    .note("the first device on which the packets are missing, or have another address, is behind what drops or changes them");
    Some(if path.others_pass {
        finding.about_peers(path.lost.iter().map(|(name, _)| &**name))
    } else {
        finding
    })
}

fn pods_masqueraded(facts: &Facts) -> Vec<Finding> {
    let masqueraded = |path: &PodPath| {
        let (peer, _) = path.lost.iter().find(|(_, lost)| *lost == Lost::Address)?;
        let (bridge, address) = (bridge_name(facts), path.address);
        let iptables = path.family.pick("iptables", "ip6tables");
        Some(
            Finding::new(
                "pods-masqueraded",
                Severity::Degraded,
                path.family.to_string(),
                "packets of this node's pods reach pods of other nodes with another address",
                "a rule for NAT changes it: network policies, access lists and logs there see this node instead of the pod",
            )
            .of(path.family)
            .seen(
                format!("{peer} was asked from {address} at {bridge}, and saw another address"),
                "flannelctl status -o json",
            )
            .run(format!("{iptables} -t nat -S | grep -e MASQUERADE -e SNAT"))
            .run("nft list ruleset | grep -e masquerade -e snat")
            .note("keep packets inside of the network out of the rule that is not flannel's: ! -d NETWORK, or a RETURN before it; Docker's goes with --ip-masq=false"),
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
                format!("a pod has {address}, which --probe-pods needs: the path of pods is not probed"),
                "the pod was there before, or the CNI plugin is not flannel-rs': that one keeps the address free",
            )
            .of(path.family)
            .seen(
                format!("{mac} answers for {address}"),
                format!("bridge fdb show br {}", word(bridge)),
            )
            .run(format!("grep -l . /var/lib/cni/networks/*/{address}"))
            .note("delete the pod whose container is named in that file: it comes back with another address"),
        )
    };
    paths(facts).iter().filter_map(taken).collect()
}
