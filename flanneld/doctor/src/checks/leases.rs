//! Checks of the leases: this node's lease, the peers' leases, and the leases that this node does not use.

use super::interface_remedy::with_store;
use crate::check::Check;
use crate::command::Command;
use crate::facts::Facts;
use crate::facts::daemon::Launch;
use crate::facts::leases::Peer;
use crate::facts::mesh::State;
use crate::finding::{Finding, SEVERAL, Severity, named};
use crate::need::Need;
use crate::shell::word;
use types::{Detail, Problem};

/// In seconds; a lease holder that has sent nothing for longer counts as gone.
const SILENT: u64 = 600;
/// One finding covers all refused leases, or all silent holders, if there are more.
const MAX_LISTED: usize = 3;

/// Why a peer may not respond at its address; probes cannot tell these reasons apart.
pub(super) const SILENCE: &str = "the peer may be off, its network may be down, or a firewall on the path or on the peer may drop ping and probes. The peer's lease may also contain an address that does not belong to the peer";

pub const CHECKS: &[Check] = &[
    Check::new(
        "lease",
        Severity::Broken,
        "This node has no lease, or cannot keep its lease",
        &[Need::OwnLease],
        &[],
        lease,
    ),
    Check::new(
        "lease-refused",
        Severity::Degraded,
        "This node does not use a peer's lease",
        &[Need::Refused],
        &[],
        lease_refused,
    ),
    Check::new(
        "other-store",
        Severity::Degraded,
        "Nodes without a lease in this node's store probe this node",
        &[Need::Mesh, Need::Daemons],
        &[],
        other_store,
    )
    .waiting(),
    Check::new(
        "silent-node",
        Severity::Risk,
        "The holder of a lease is gone",
        &[Need::Peers, Need::Mesh],
        &[],
        silent_node,
    )
    .waiting(),
];

/// Without any peer, all pods of this node are cut off.
fn severity(facts: &Facts) -> Severity {
    let is_alone = facts.leases.peers.known().is_some_and(Vec::is_empty);
    if is_alone { Severity::Broken } else { Severity::Degraded }
}

fn other_store(facts: &Facts) -> Vec<Finding> {
    // If several daemons run on this host, the unknown sender may probe a daemon of another network.
    let is_alone = facts.host.daemons.known().is_some_and(|daemons| *daemons <= 1);
    let strangers = facts.mesh.known().map_or(&[][..], |mesh| &mesh.strangers);
    let Some(first) = strangers.first().filter(|_| is_alone) else {
        return Vec::new();
    };
    let peers = facts.leases.peers.known().map_or(0, Vec::len);
    let others = strangers.len() - 1;
    let whom = match others {
        0 => first.to_string(),
        others => format!("{first} and {others} more"),
    };
    vec![
        Finding::new(
            "other-store",
            severity(facts),
            "",
            format!("probes arrive from {whom}, but the sender has no lease in {}", facts.store.place),
            "either the sender reads this node's lease from another store or prefix, or the sender's own lease is missing in this node's store. If the sender uses another store or prefix, packets between the pods of both nodes get lost",
        )
        .seen(
            format!("the store has {peers} leases of other nodes, but none with the address {first}"),
            "flannelctl leases",
        )
        .run(with_store(facts, "flannelctl leases --long"))
        .note("run the same command on the sender: if the command lists other leases, compare --etcd-endpoints, --etcd-prefix, --subnet-dir, or the API servers"),
    ]
}

fn lease(facts: &Facts) -> Vec<Finding> {
    let Some(own) = facts.leases.own.known() else {
        let reason = facts.reason("lease");
        return reason
            .map(|reason| {
                lost(
                    facts,
                    Some(reason),
                    "this node has no lease",
                    "pods of this node get no addresses until the node has a lease",
                )
            })
            .into_iter()
            .collect();
    };
    match (&own.trouble, own.ends_in) {
        (trouble, Some(left)) if own.within_margin => {
            vec![lost(
                facts,
                trouble.as_ref(),
                &format!("the lease of this node ends in {left} s"),
                "another node may get this node's subnet when the lease ends",
            )]
        }
        (Some(trouble), _) => {
            let mut finding = lost(
                facts,
                Some(trouble),
                "flanneld cannot keep the lease of this node",
                "the store or another machine disputes the lease",
            );
            finding.severity = Severity::Degraded;
            vec![finding]
        }
        (None, _) => Vec::new(),
    }
}

fn lost(facts: &Facts, trouble: Option<&Problem>, what: &str, why: &str) -> Finding {
    let seen =
        trouble.map_or_else(|| "flanneld did not renew the lease".to_owned(), ToString::to_string);
    let finding = Finding::new("lease", Severity::Broken, "", what, why).seen(seen, "readyz");
    let full = trouble
        .is_some_and(|trouble| trouble.details().any(|detail| *detail == Detail::OutOfSubnets));
    if full { finding.run(with_store(facts, "flannelctl leases --long")) } else { finding }
}

fn lease_refused(facts: &Facts) -> Vec<Finding> {
    // A separate check reports leases with this node's address. An unused reservation is not a fault.
    let refused = facts.leases.refused.known().into_iter().flatten();
    let refused: Vec<_> = refused
        .filter(|refused| !matches!(refused.reason.as_str(), "our-address" | "reserved"))
        .collect();
    if refused.len() > MAX_LISTED {
        let finding = Finding::new(
            "lease-refused",
            severity(facts),
            SEVERAL,
            format!("this node does not use {} leases", refused.len()),
            "pods of this node and pods of the nodes with these leases do not reach each other",
        );
        let finding = refused.iter().take(MAX_LISTED).fold(finding, |finding, refused| {
            finding.seen(format!("{}: {}", refused.lease, refused.text), "flannelctl leases")
        });
        return vec![finding.run(with_store(facts, "flannelctl leases"))];
    }
    refused
        .iter()
        .map(|refused| {
            Finding::new(
                "lease-refused",
                severity(facts),
                &refused.lease,
                format!("this node does not use the lease {}", refused.lease),
                "pods of this node and pods of the node with this lease do not reach each other",
            )
            .seen(&refused.text, "flannelctl leases")
            .on("its holder")
        })
        .collect()
}

/// Peers that reply to no probes and whose Node is NotReady or, without Kubernetes, whose daemon has been silent for ten minutes.
pub fn gone(facts: &Facts) -> impl Iterator<Item = &Peer> {
    let paths = facts.paths();
    let cut = |peer: &Peer| {
        let mut own = paths
            .iter()
            .filter(|path| peer.subnets.nets().any(|net| net == path.subnet))
            .peekable();
        own.peek().is_some() && own.all(|path| path.verdict.state == State::CutOff)
    };
    // With Kubernetes, the Node's condition decides without a delay. A cordoned node still runs pods.
    let is_off = |peer: &Peer| match peer.node {
        Some(node) => !node.ready,
        None => peer.silent.is_some_and(|age| age >= SILENT),
    };
    let peers = facts.peers();
    peers.filter(move |peer| is_off(peer) && cut(peer))
}

/// How long ago the lease holder last reported, or that its Node is NotReady.
fn silence_of(peer: &Peer) -> String {
    let minutes = peer.silent.unwrap_or_default() / 60;
    match peer.node {
        Some(node) if !node.ready && node.cordoned => {
            format!("the Node {} is NotReady and cordoned", peer.name)
        }
        Some(node) if !node.ready => {
            format!("the Node {} has been NotReady for {minutes} min", peer.name)
        }
        _ => format!("{} has not reported for {minutes} min", peer.name),
    }
}

fn silent_node(facts: &Facts) -> Vec<Finding> {
    let why = "if the silent machine never returns, its subnet stays reserved until its lease ends or, on Kubernetes, until you delete its Node";
    let gone: Vec<&Peer> = gone(facts).collect();
    if gone.len() > MAX_LISTED {
        let names: Vec<&str> = gone.iter().map(|peer| &*peer.name).collect();
        let command = match &facts.daemon.launch {
            Launch::Systemd => Command::from(with_store(facts, "flannelctl leases --long")),
            Launch::Kubernetes { .. } => Command::kubectl("get nodes -o wide"),
        };
        let what = format!(
            "{} nodes are gone, or have not reported for {} min: {}",
            gone.len(),
            SILENT / 60,
            named(&names, MAX_LISTED)
        );
        let finding = Finding::new(
            "silent-node",
            Severity::Risk,
            SEVERAL,
            what,
            "if the silent machines never return, their subnets stay reserved until their leases end or, on Kubernetes, until you delete their Nodes",
        )
        .about_peers(names);
        return vec![
            finding.seen("the nodes reply neither to probes nor to ping", "probes").run(command),
        ];
    }
    let one = |peer: &Peer| {
        let subnet = peer.subnets.nets().next()?;
        let command = match &facts.daemon.launch {
            // The command shows the lease and asks for confirmation, because only the operator knows whether the machine will come back.
            Launch::Systemd => {
                Command::from(with_store(facts, &format!("flannelctl release {subnet}")))
            }
            Launch::Kubernetes { .. } => {
                Command::kubectl(format!("get node {} -o wide", word(&peer.name)))
            }
        };
        Some(
            Finding::new(
                "silent-node",
                Severity::Risk,
                peer.subnets.to_string(),
                silence_of(peer),
                why,
            )
            .about_peers([&*peer.name])
            .seen("the node replies neither to probes nor to ping", "probes")
            .run(command),
        )
    };
    gone.into_iter().filter_map(one).collect()
}
