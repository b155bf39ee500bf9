//! Checks of the leases: this node's lease, the peers' leases, and the leases that this node does not use.

use super::interface_remedy::with_store;
use crate::check::Check;
use crate::command::Command;
use crate::facts::Facts;
use crate::facts::daemon::Launch;
use crate::facts::leases::Peer;
use crate::facts::mesh::State;
use crate::finding::{Finding, SEVERAL, Severity};
use crate::need::Need;
use crate::shell::word;
use types::{Detail, Problem};

/// Silence in seconds after which the check considers the holder of a lease gone.
const SILENT: u64 = 600;
/// Maximum number of refused leases, and of silent holders, with separate findings. If there are more, one finding covers all of them.
const MAX_LISTED: usize = 3;

/// Possible reasons why a peer's address does not respond. Probes cannot distinguish them.
pub(super) const SILENCE: &str = "that machine may be off, its network down, or a firewall on the path or on it may drop ping and probes; its lease may also have an address that is not its own";

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    Check {
        id: "lease",
        severity: Severity::Broken,
        title: "This node's lease is in trouble",
        needs: &[Need::OwnLease],
        explains: &[],
        waits: false,
        judge: lease,
    },
    Check {
        id: "lease-refused",
        severity: Severity::Degraded,
        title: "A peer's lease is not used",
        needs: &[Need::Refused],
        explains: &[],
        waits: false,
        judge: lease_refused,
    },
    Check {
        id: "other-store",
        severity: Severity::Degraded,
        title: "Nodes that are not in this node's store probe it",
        needs: &[Need::Mesh, Need::Daemons],
        explains: &[],
        waits: true,
        judge: other_store,
    },
    Check {
        id: "silent-node",
        severity: Severity::Risk,
        title: "The holder of a lease is gone",
        needs: &[Need::Peers, Need::Mesh],
        explains: &[],
        waits: true,
        judge: silent_node,
    },
];

fn other_store(facts: &Facts) -> Vec<Finding> {
    // If several daemons run on this host, the unknown sender may probe a daemon of another network.
    let is_alone = facts
        .host
        .daemons
        .known()
        .is_some_and(|daemons| *daemons <= 1);
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
            Severity::Degraded,
            "",
            format!("{whom} probes this node, and has no lease in {}", facts.store.place),
            "it has this node's lease from another store or prefix: packets between its pods and this node's are lost. Or its own lease is missing here",
        )
        .seen(
            format!("{peers} leases of other nodes are in the store, none at {first}"),
            "flannelctl leases",
        )
        .run(with_store(facts, "flannelctl leases --long"))
        .note("the same command on that node must list the same leases: compare --etcd-endpoints, --etcd-prefix, --subnet-dir, or the API servers"),
    ]
}

fn lease(facts: &Facts) -> Vec<Finding> {
    let Some(own) = facts.leases.own.known() else {
        let reason = facts
            .daemon
            .reasons
            .known()
            .and_then(|reasons| reasons.get("lease"));
        return reason
            .map(|reason| {
                lost(
                    facts,
                    Some(reason),
                    "this node has no lease",
                    "pods of this node get no addresses until it has one",
                )
            })
            .into_iter()
            .collect();
    };
    match (&own.trouble, own.ends_in) {
        (Some(trouble), Some(left)) if own.within_margin => {
            vec![lost(
                facts,
                Some(trouble),
                &format!("the lease of this node ends in {left} s"),
                "another node may then be given this node's subnet",
            )]
        }
        (None, Some(left)) if own.within_margin => {
            vec![lost(
                facts,
                None,
                &format!("the lease of this node ends in {left} s"),
                "another node may then be given this node's subnet",
            )]
        }
        (Some(trouble), _) => {
            let mut finding = lost(
                facts,
                Some(trouble),
                "the lease of this node cannot be kept",
                "the store or another machine disputes it",
            );
            finding.severity = Severity::Degraded;
            vec![finding]
        }
        (None, _) => Vec::new(),
    }
}

fn lost(facts: &Facts, trouble: Option<&Problem>, what: &str, why: &str) -> Finding {
    let seen = trouble.map_or_else(|| "it was not renewed".to_owned(), ToString::to_string);
    let finding = Finding::new("lease", Severity::Broken, "", what, why).seen(seen, "readyz");
    let full = trouble.is_some_and(|trouble| {
        trouble
            .details()
            .any(|detail| *detail == Detail::OutOfSubnets)
    });
    if full {
        finding.run(with_store(facts, "flannelctl leases --long"))
    } else {
        finding
    }
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
            Severity::Degraded,
            SEVERAL,
            format!("{} leases are not used", refused.len()),
            "pods of their nodes and pods of this one do not reach each other",
        );
        let finding = refused
            .iter()
            .take(MAX_LISTED)
            .fold(finding, |finding, refused| {
                finding.seen(
                    format!("{}: {}", refused.lease, refused.text),
                    "flannelctl leases",
                )
            });
        return vec![finding.run(with_store(facts, "flannelctl leases"))];
    }
    refused
        .iter()
        .map(|refused| {
            Finding::new(
                "lease-refused",
                Severity::Degraded,
                &refused.lease,
                format!("the lease {} is not used", refused.lease),
                "pods of its node and pods of this one do not reach each other",
            )
            .seen(&refused.text, "flannelctl leases")
            .on("its holder")
        })
        .collect()
}

/// Returns the peers that respond to no probes and from which Kubernetes or the store has received nothing for a long time.
pub fn gone(facts: &Facts) -> impl Iterator<Item = &Peer> {
    let paths = facts.mesh.known().map_or(&[][..], |mesh| &mesh.paths);
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
    let peers = facts.leases.peers.known().into_iter().flatten();
    peers.filter(move |peer| is_off(peer) && cut(peer))
}

/// Returns text about the time for which a holder has been gone.
fn silence_of(peer: &Peer) -> String {
    let minutes = peer.silent.unwrap_or_default() / 60;
    match peer.node {
        Some(node) if !node.ready && node.cordoned => {
            format!("the Node {} is NotReady and cordoned", peer.name)
        }
        Some(node) if !node.ready => {
            format!("the Node {} is NotReady, for {minutes} min", peer.name)
        }
        _ => format!("{} has not been heard of for {minutes} min", peer.name),
    }
}

fn silent_node(facts: &Facts) -> Vec<Finding> {
    let why = "if that machine is gone for good, its subnet stays taken until its lease ends, or on Kubernetes until its Node is deleted";
    let gone: Vec<&Peer> = gone(facts).collect();
    if gone.len() > MAX_LISTED {
        let names: Vec<&str> = gone
            .iter()
            .take(MAX_LISTED)
            .map(|peer| &*peer.name)
            .collect();
        let command = match &facts.daemon.launch {
            Launch::Systemd => Command::from(with_store(facts, "flannelctl leases --long")),
            Launch::Kubernetes { .. } => Command::kubectl("get nodes -o wide"),
        };
        let what = format!(
            "{} nodes are gone, or have not been heard of for {} min: {} and {} more",
            gone.len(),
            SILENT / 60,
            names.join(", "),
            gone.len() - MAX_LISTED
        );
        let finding = Finding::new(
            "silent-node",
            Severity::Risk,
            SEVERAL,
            what,
            "if those machines are gone for good, their subnets stay taken until their leases end, or on Kubernetes until their Nodes are deleted",
        )
        .about_peers(gone.iter().map(|peer| &*peer.name));
        return vec![
            finding
                .seen("they answer neither probes nor ping", "probes")
                .run(command),
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
            .seen("it answers neither probes nor ping", "probes")
            .run(command),
        )
    };
    gone.into_iter().filter_map(one).collect()
}
