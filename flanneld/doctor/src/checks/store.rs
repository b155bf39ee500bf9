//! The store, the network's configuration in it, and the leases.

use crate::check::Check;
use crate::facts::Facts;
use crate::facts::daemon::Launch;
use crate::facts::leases::Peer;
use crate::facts::mesh::State;
use crate::facts::store::TroubleKind;
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::shell::word;

/// How long a holder may be silent before its lease is suspected to be left over.
const SILENT: u64 = 600;
/// How many refused leases are told one by one.
const TOLD: usize = 16;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    Check {
        id: "store-unreachable",
        severity: Severity::Degraded,
        title: "The store does not answer",
        needs: &[Need::Store],
        explains: &["lease", "config"],
        waits: false,
        judge: store_unreachable,
    },
    Check {
        id: "config",
        severity: Severity::Broken,
        title: "The network configuration is missing or wrong",
        needs: &[Need::Config],
        explains: &["lease"],
        waits: false,
        judge: config,
    },
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
        id: "silent-node",
        severity: Severity::Risk,
        title: "The holder of a lease is gone",
        needs: &[Need::Peers, Need::Mesh],
        explains: &[],
        waits: true,
        judge: silent_node,
    },
];

fn store_unreachable(facts: &Facts) -> Vec<Finding> {
    let Some(trouble) = facts.store.trouble.known() else { return Vec::new() };
    let place = &facts.store.place;
    let host = facts.store.addresses.first();
    let serves = facts.leases.own.known().is_some();
    let (severity, why) = match serves {
        true => {
            (Severity::Degraded, "this node keeps its ways to the others, learns of no change, and its lease runs out unless the store answers again")
        }
        false => (Severity::Broken, "this node has no lease yet, and gets none until the store answers"),
    };
    let route = host.map(|host| format!("ip route get {host}"));
    let (what, commands) = match trouble.kind {
        TroubleKind::Refused => ("nobody listens at its address: it is down, or the port is wrong".to_owned(), Vec::new()),
        TroubleKind::NoRoute => ("there is no route to it".to_owned(), route.into_iter().collect()),
        TroubleKind::Silent => ("it does not answer: it hangs, or a firewall drops the packets".to_owned(), route.into_iter().collect()),
        TroubleKind::Name => ("its name cannot be resolved".to_owned(), vec!["cat /etc/resolv.conf /etc/hosts".to_owned()]),
        TroubleKind::Tls => ("the certificates do not fit".to_owned(), Vec::new()),
        TroubleKind::User => ("it refuses this node's user or password".to_owned(), Vec::new()),
        TroubleKind::Role => ("this node's user may not do what flanneld does".to_owned(), Vec::new()),
        TroubleKind::NoSpace => {
            ("etcd's disk quota is used up".to_owned(), vec!["etcdctl defrag --cluster".to_owned(), "etcdctl alarm disarm".to_owned()])
        }
        TroubleKind::NoQuorum => {
            ("most of its members are down: it has no quorum".to_owned(), vec!["etcdctl endpoint status --cluster -w table".to_owned()])
        }
        TroubleKind::Other => ("it does not serve".to_owned(), Vec::new()),
    };
    let mut finding =
        Finding::new("store-unreachable", severity, "", format!("the store cannot be used ({place}): {what}"), why).seen(&trouble.text, "flanneld");
    let ways = facts.host.ways.known().into_iter().flatten().filter(|way| facts.store.addresses.contains(&way.to));
    for way in ways {
        finding = match &way.by {
            Ok((index, _)) => match facts.host.interface(*index) {
                Some(interface) => finding.seen(format!("{} would be reached by {}", way.to, interface.name), format!("ip route get {}", way.to)),
                None => finding,
            },
            Err(why) => finding.seen(format!("{}: {why}", way.to), format!("ip route get {}", way.to)),
        };
    }
    vec![finding.run_all(commands).on("the store's machine")]
}

fn config(facts: &Facts) -> Vec<Finding> {
    let Some(text) = facts.store.config.known() else { return Vec::new() };
    let finding = Finding::new(
        "config",
        Severity::Broken,
        "",
        "the network configuration cannot be used",
        "flanneld waits for one that it can use, and goes on as soon as it is there",
    );
    vec![finding.seen(text, &facts.store.place).on("whoever configures the network")]
}

fn lease(facts: &Facts) -> Vec<Finding> {
    let Some(own) = facts.leases.own.known() else {
        let reason = facts.daemon.reasons.known().and_then(|reasons| reasons.get("lease"));
        return reason
            .map(|reason| lost(reason, "this node has no lease", "pods of this node get no addresses until it has one"))
            .into_iter()
            .collect();
    };
    match (&own.trouble, own.ends_in) {
        (Some(trouble), Some(left)) if own.within_margin => {
            vec![lost(trouble, &format!("the lease of this node ends in {left} s"), "another node may then be given this node's subnet")]
        }
        (None, Some(left)) if own.within_margin => {
            vec![lost("it was not renewed", &format!("the lease of this node ends in {left} s"), "another node may then be given this node's subnet")]
        }
        (Some(trouble), _) => {
            let mut finding =
                lost(trouble, "the lease of this node cannot be kept as it is", "the store or another machine does not agree that it is this node's");
            finding.severity = Severity::Degraded;
            vec![finding]
        }
        (None, _) => Vec::new(),
    }
}

fn lost(seen: &str, what: &str, why: &str) -> Finding {
    let finding = Finding::new("lease", Severity::Broken, "", what, why).seen(seen, "readyz");
    if seen.contains("out of subnets") { finding.run("flannelctl leases --long").on("any node") } else { finding }
}

fn lease_refused(facts: &Facts) -> Vec<Finding> {
    // Those with our own address have a check of their own; a reservation that nobody took is as it should be.
    let refused = facts.leases.refused.known().into_iter().flatten();
    let refused: Vec<_> = refused.filter(|refused| !matches!(refused.reason.as_str(), "our-address" | "reserved")).collect();
    let mut findings: Vec<Finding> = refused
        .iter()
        .take(TOLD)
        .map(|refused| {
            Finding::new(
                "lease-refused",
                Severity::Degraded,
                &refused.lease,
                format!("the lease {} is not used", refused.lease),
                "pods of its node and pods of this one do not reach each other",
            )
            .seen(&refused.text, "flannelctl leases")
            .on("the node that holds it")
        })
        .collect();
    if refused.len() > TOLD {
        let more = refused.len() - TOLD;
        findings.push(
            Finding::new("lease-refused", Severity::Degraded, "more", format!("{more} more leases are not used"), "their nodes are not reached")
                .run("flannelctl leases"),
        );
    }
    findings
}

/// The peers that neither the store nor the probes have heard of for long.
pub fn gone(facts: &Facts) -> impl Iterator<Item = &Peer> {
    let paths = facts.mesh.known().map_or(&[][..], |mesh| &mesh.paths);
    let cut = |peer: &Peer| {
        let mut own = paths.iter().filter(|path| peer.subnets.nets().any(|net| net == path.subnet)).peekable();
        own.peek().is_some() && own.all(|path| path.state == State::Cut)
    };
    let peers = facts.leases.peers.known().into_iter().flatten();
    peers.filter(move |peer| peer.silent.is_some_and(|age| age >= SILENT) && cut(peer))
}

fn silent_node(facts: &Facts) -> Vec<Finding> {
    let mesh = facts.mesh.known();
    let silent = |subnet: &ipnet::IpNet| mesh.is_some_and(|mesh| mesh.paths.iter().any(|path| path.subnet == *subnet && path.state == State::Cut));
    let peers = facts.leases.peers.known().into_iter().flatten();
    let gone = peers.filter(|peer| peer.silent.is_some_and(|age| age >= SILENT) && peer.subnets.nets().all(|net| silent(&net)));
    gone.filter_map(|peer| {
        let minutes = peer.silent? / 60;
        let subnet = peer.subnets.nets().next()?;
        let command = match &facts.daemon.launch {
            Launch::Systemd => format!("flannelctl release {subnet}"),
            Launch::Kubernetes { .. } => format!("kubectl delete node {}", word(&peer.name)),
        };
        Some(
            Finding::new(
                "silent-node",
                Severity::Risk,
                peer.subnets.to_string(),
                format!("{} has not been heard of for {minutes} min", peer.name),
                "if that machine is gone for good, its subnet stays taken until its lease ends",
            )
            .seen("it answers neither probes nor ping", "probes")
            .run(command)
            .on("any node"),
        )
    })
    .collect()
}
