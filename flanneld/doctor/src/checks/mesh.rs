//! Checks of the probe results, which locate a fault at a peer, on the path to the peer, or at this node.

use crate::check::Check;
use crate::encapsulation::{capture, is_or_are, words};
use crate::facts::mesh::{Mesh, Path, State};
use crate::facts::{Facts, Network};
use crate::finding::{Finding, SEVERAL, Severity, named};
use crate::firewalls::{Carried, Drop, Table};
use crate::let_in::{self, Origin, Program};
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use std::collections::BTreeSet;
use types::{Encapsulation, Family};

/// The largest tolerated offset of a peer's clock from this node's, in milliseconds.
const MAX_CLOCK_OFFSET: i64 = 5000;
/// In seconds. A UDP port counts as filtered only after a silence that is longer than a restart of flanneld.
const RESTART_TIME: u64 = 30;
/// Within this time, in seconds, flanneld queries the store for silent peers.
const STORE_TIME: u64 = 180;
/// The least ratio of peers with a failing tunnel to peers that are cut off completely for which one cause may block the tunnel.
const MIN_CUT: usize = 4;
/// With fewer silent peers, the check assumes no cause at this node.
const MIN_NODES: usize = 2;
/// One finding covers all peers with the same fault if there are more.
const MAX_LISTED: usize = 3;

const ABOUT_PEERS: [&str; 8] = [
    "peer-cut",
    "overlay-cut",
    "one-way",
    "wrong-node",
    "lossy",
    "slow",
    "probe-filtered",
    "silent-node",
];

pub fn is_about_peers(check: &str) -> bool {
    ABOUT_PEERS.contains(&check)
}

/// Why a peer may not respond although its kubelet reports to the API server.
const READY: &str = "the machine runs, because its kubelet reports. A firewall on the path or on the machine may drop ping and probes. The machine's network to the nodes may be down, or its lease may contain an address that does not belong to the machine";

pub const CHECKS: &[Check] =
    &[
        check(
            "encap-blocked",
            Severity::Broken,
            "A firewall drops flannel's packets between nodes",
            &["wireguard-silent", "overlay-cut", "one-way"],
            encap_blocked,
        ),
        super::wireguard::SILENT,
        check(
            "isolated",
            Severity::Broken,
            "No other node replies to this node",
            &["peer-cut"],
            isolated,
        ),
        check("peer-cut", Severity::Broken, "A peer does not respond", &[], |facts| {
            if drops_probes(facts) {
                return Vec::new();
            }
            each(facts, State::CutOff, peer_cut, "do not respond, not even to ping")
        }),
        check(
            "overlay-cut",
            Severity::Broken,
            "Packets over the overlay do not reach a peer",
            &[],
            |facts| {
                each(
                    facts,
                    State::OverlayCut,
                    overlay_cut,
                    "do not receive packets that this node sends over the overlay",
                )
            },
        ),
        check(
            "one-way",
            Severity::Broken,
            "A peer receives this node's probes, but its replies get lost",
            &[],
            |facts| {
                each(
                    facts,
                    State::OneWay,
                    one_way,
                    "receive this node's probes, but their replies do not arrive",
                )
            },
        ),
        check(
            "wrong-node",
            Severity::Broken,
            "Another node replies at a peer's address",
            &[],
            |facts| {
                each(
                    facts,
                    State::WrongNode,
                    wrong_node,
                    "do not reply; other machines reply at the addresses of these peers",
                )
            },
        ),
        check("lossy", Severity::Degraded, "The path to a peer loses packets", &[], |facts| {
            match facts.mesh.known().and_then(|mesh| mesh.lost_everywhere) {
                Some(counts) => vec![lossy_everywhere(counts)],
                None => each(facts, State::LosesSome, lossy, "have paths that lose packets"),
            }
        }),
        check("slow", Severity::Degraded, "The path to a peer is slow", &[], |facts| {
            each(facts, State::Slow, slow, "reply much later than usual")
        }),
        check(
            "probe-filtered",
            Severity::Risk,
            "A peer replies to ping but not to probes",
            &[],
            probe_filtered,
        ),
        check("clock", Severity::Risk, "This node's clock is wrong", &[], clock),
    ];

const fn check(
    id: &'static str,
    severity: Severity,
    title: &'static str,
    explains: &'static [&'static str],
    judge: fn(&Facts) -> Vec<Finding>,
) -> Check {
    Check::new(id, severity, title, &[Need::Network, Need::Mesh], explains, judge).waiting()
}

/// One finding for each path in a state or, for more than three paths, one for all of them. `several` is the predicate of the sentence about several
/// peers.
fn each(
    facts: &Facts,
    state: State,
    tell: impl Fn(&Facts, &Path) -> Finding,
    several: &str,
) -> Vec<Finding> {
    // Peers whose machines are gone have a finding of their own.
    let gone: BTreeSet<IpNet> = super::leases::gone(facts)
        .flat_map(|peer| peer.subnets.nets())
        .chain(not_asked_about(facts))
        .collect();
    let is_hit = |path: &&Path| {
        !path.inferred && path.verdict.state == state && !gone.contains(&path.subnet)
    };
    let hit: Vec<&Path> = facts.paths().iter().filter(is_hit).collect();
    let told = hit.iter().take(MAX_LISTED).map(|path| {
        let finding = tell(facts, path).about_peers([&*path.node]);
        finding.within([path.subnet]).of(path.address.into())
    });
    if hit.len() <= MAX_LISTED {
        return told.collect();
    }
    let mut told = told.collect::<Vec<_>>().into_iter();
    let Some(first) = told.next() else {
        return Vec::new();
    };
    let names: Vec<&str> = hit.iter().map(|path| &*path.node).collect();
    let what = format!("{} peers {several}: {}", hit.len(), named(&names, MAX_LISTED));
    let finding = Finding::new(&first.check, first.severity, SEVERAL, what, first.why.clone())
        .about_peers(names)
        .within(hit.iter().map(|path| path.subnet));
    let finding = [first]
        .into_iter()
        .chain(told)
        .filter_map(|finding| Some((finding.what, finding.evidence.into_iter().next()?.from)))
        .fold(finding, |finding, (text, from)| finding.seen(text, from));
    vec![finding.run("flannelctl peers")]
}

/// Adds other nodes' reports on the peer: they show whether the fault is at it, on the path, or at this node.
fn blame(path: &Path, finding: Finding) -> Finding {
    let nodes = |count, one: &str, many: &str| match count {
        1 => format!("1 other node {one} the peer"),
        count => format!("{count} other nodes {many} the peer"),
    };
    let text = match path.others {
        Some((0, fail @ 1..)) => format!(
            "{} either, so the fault is at {}",
            nodes(fail, "does not reach", "do not reach"),
            path.node
        ),
        Some((reach @ 1.., 0)) => format!(
            "{}, so the fault is on the path or at this node",
            nodes(reach, "reaches", "reach")
        ),
        Some((reach @ 1.., fail)) => format!(
            "{}, but {fail} do not, so the fault is on the path",
            nodes(reach, "reaches", "reach")
        ),
        _ => return finding,
    };
    finding.seen(text, "other nodes")
}

fn about(path: &Path) -> String {
    format!("{} {}", path.node, path.subnet)
}

/// The peer's name, with its address if this node or another peer has the same name.
pub(super) fn there(facts: &Facts, path: &Path) -> String {
    let is_same = |other: &&Path| other.node == path.node && other.address != path.address;
    let of_family = facts.judged(path.address.into());
    if *path.node == *facts.host.name || of_family.iter().any(is_same) {
        format!("{} ({})", path.node, path.address)
    } else {
        path.node.to_string()
    }
}

/// True if a single cause can explain all faults of the tunnel over the family.
fn all_blocked(mesh: &Mesh, family: Family) -> bool {
    let is_cut = |state| [State::OverlayCut, State::OneWay].contains(&state);
    let of_family = || mesh.paths.iter().filter(|path| Family::from(path.address) == family);
    if mesh.faults.iter().any(|fault| is_cut(fault.state)) {
        return of_family().any(|path| is_cut(path.verdict.state));
    }
    let (off, judged): (Vec<&Path>, Vec<&Path>) = of_family()
        .filter(|path| path.verdict.state != State::Unknown)
        // No flanneld listens on a host that refuses probes: the host may not be the peer.
        .partition(|path| path.verdict.state == State::CutOff || path.refuses);
    // A few machines may be off at the same time.
    if off.len() * MIN_CUT > judged.len() {
        return false;
    }
    let cut = |path: &&Path| path.verdict.state == State::OverlayCut;
    let one_way = |path: &&Path| path.verdict.state == State::OneWay;
    // If the only peer receives this node's packets, that peer may just have a wrong entry for this node.
    !judged.is_empty()
        && judged.iter().all(|path| path.underlay)
        && (judged.iter().all(cut) || judged.len() > 1 && judged.iter().all(one_way))
}

/// True if every peer of the family loses its packets, although one responds over the underlay.
fn is_missed(facts: &Facts, family: Family) -> bool {
    let mut judged = facts.judged(family).into_iter();
    super::firewall::nothing_arrives(facts, family) && judged.any(|path| path.underlay)
}

/// This host's rules and policies that drop tunnel packets.
fn dropped_here(facts: &Facts, family: Family) -> impl Iterator<Item = &Drop> {
    [Carried::TunnelIn, Carried::TunnelOut]
        .into_iter()
        .flat_map(|carried| super::drops::of(facts, carried))
        .filter(move |drop| drop.family == family)
}

/// This host's iptables tables that certainly drop incoming tunnel packets.
fn shut_tables(facts: &Facts, family: Family) -> impl Iterator<Item = &Table> {
    let firewalls = facts.host.firewalls.known().into_iter();
    firewalls
        .flat_map(|firewalls| &firewalls.tables)
        .filter(move |table| table.is_shut() && Family::from(table.network) == family)
}

/// True if this host drops tunnel packets over the family.
pub(super) fn is_shut_here(facts: &Facts, family: Family) -> bool {
    shut_tables(facts, family).next().is_some() || dropped_here(facts, family).next().is_some()
}

/// This node's VNI and the common VNI of all peers; `None` unless they differ.
fn other_vni(facts: &Facts, network: &Network) -> Option<(u32, u32)> {
    let own = network.vni?;
    let mut vnis = facts.peers().filter_map(|peer| peer.vni);
    let first = vnis.next()?;
    (first != own && vnis.all(|vni| vni == first)).then_some((own, first))
}

struct BlockedTunnel<'a> {
    /// Families of the underlay.
    families: Vec<Family>,
    /// Tables of this host that reject tunnel packets in INPUT.
    tables: Vec<&'a Table>,
    /// Other rules and policies of this host that drop tunnel packets.
    drops: Vec<&'a Drop>,
}

impl<'a> BlockedTunnel<'a> {
    fn of(facts: &'a Facts, network: &Network, mesh: &Mesh) -> Self {
        let families: Vec<Family> = Family::ALL
            .into_iter()
            .filter(|family| {
                let is_here = || is_missed(facts, *family) && is_shut_here(facts, *family);
                network.travels_in(*family) && (all_blocked(mesh, *family) || is_here())
            })
            .collect();
        let tables = families.iter().flat_map(|family| shut_tables(facts, *family));
        let drops = families.iter().flat_map(|family| dropped_here(facts, *family));
        Self { tables: tables.collect(), drops: drops.collect(), families }
    }

    fn is_here(&self) -> bool {
        !self.tables.is_empty() || !self.drops.is_empty()
    }
}

fn encap_blocked(facts: &Facts) -> Vec<Finding> {
    let (Some(network), Some(mesh)) = (facts.network.known(), facts.mesh.known()) else {
        return Vec::new();
    };
    let Some(tunnel) = network.tunnel() else {
        return Vec::new();
    };
    let blocked = BlockedTunnel::of(facts, network, mesh);
    // With WireGuard the keys may also be the cause, unless this host rejects the port.
    if blocked.families.is_empty() || network.is_encrypted() && !blocked.is_here() {
        return Vec::new();
    }
    if let Some(vnis) = other_vni(facts, network).filter(|_| !blocked.is_here()) {
        return vec![vni_differs(facts, mesh, vnis)];
    }
    let what = words(tunnel);
    let mut finding = seen_by_probes(blocked_words(network, mesh, tunnel, &blocked), mesh);
    // A rule of this host concerns all peers.
    if !blocked.is_here() {
        let cut = mesh.paths.iter().filter(|path| path.is_lost());
        finding = finding.within(cut.map(|path| path.subnet));
    }
    let mut commands = Vec::new();
    for family in &blocked.families {
        let shut: Vec<&Table> = blocked
            .tables
            .iter()
            .copied()
            .filter(|table| Family::from(table.network) == *family)
            .collect();
        finding = shut.iter().fold(finding, |finding, table| refused_by(finding, table, &what));
        if !shut.is_empty() {
            commands.extend(let_tunnel_in(facts, tunnel, *family, &shut));
        }
    }
    for drop in &blocked.drops {
        let subject = super::drops::subject(drop);
        finding = super::drops::seen(
            finding.seen(format!("{subject} drops {what}"), "the rules of this host"),
            drop,
        );
        commands.extend(super::drops::let_tunnel_pass(facts, network, drop));
    }
    if commands.is_empty() {
        // No rule of this host drops the packets, so captures on the hosts have to show where they are lost.
        let capture = format!("tcpdump -c 5 -ni any {}", filter_words(&capture(tunnel)));
        return vec![finding.run("flannelctl doctor").run(capture).on(crate::finding::EVERYWHERE)];
    }
    vec![finding.run_all(commands)]
}

/// The caller adds the evidence and the commands.
fn blocked_words(
    network: &Network,
    mesh: &Mesh,
    tunnel: Encapsulation,
    blocked: &BlockedTunnel<'_>,
) -> Finding {
    let what = words(tunnel);
    let families = Family::ALL.into_iter().filter(|family| network.travels_in(*family));
    let only = match blocked.families.as_slice() {
        [family] if families.count() > 1 => Some(*family),
        _ => None,
    };
    let over = only.map(|family| format!(" over {family}")).unwrap_or_default();
    let finding = Finding::new(
        "encap-blocked",
        Severity::Broken,
        "",
        format!(
            "{what} {} blocked{over} {}",
            is_or_are(tunnel),
            where_blocked(mesh, &blocked.tables, &blocked.drops)
        ),
        if blocked.is_here() {
            format!(
                "a rule of this host drops {what}: peers reply over the underlay but not over the overlay"
            )
        } else {
            format!(
                "peers reply over the underlay but not over the overlay: a host firewall, a security group or a hypervisor drops {what}"
            )
        },
    );
    match only {
        Some(family) => finding.of(family),
        None => finding,
    }
}

/// Where tunnel packets get lost: this node, the path, or the peers.
fn where_blocked(mesh: &Mesh, tables: &[&Table], drops: &[&Drop]) -> &'static str {
    let only_sent = !drops.is_empty()
        && tables.is_empty()
        && drops.iter().all(|drop| drop.carried == Carried::TunnelOut);
    let incoming = || mesh.paths.iter().any(|path| path.verdict.state == State::OneWay);
    if only_sent {
        "by this node"
    } else if !tables.is_empty() || !drops.is_empty() || incoming() {
        "to this node"
    } else {
        "on the path, or at the peers"
    }
}

/// The probe results of the first four peers.
fn seen_by_probes(finding: Finding, mesh: &Mesh) -> Finding {
    let finding =
        mesh.faults.iter().fold(finding, |finding, fault| finding.seen(fault.share(), "probes"));
    let cut = mesh.paths.iter().filter(|path| !path.inferred && path.underlay && path.is_lost());
    cut.take(4).fold(finding, |finding, path| {
        let through = match path.verdict.state {
            State::OneWay => "its replies get lost",
            _ => "nothing arrives",
        };
        finding.seen(
            format!(
                "{} at {} replies over the underlay, but {through} over the overlay",
                path.node, path.address
            ),
            "probes",
        )
    })
}

fn vni_differs(facts: &Facts, mesh: &Mesh, (own, other): (u32, u32)) -> Finding {
    let finding = Finding::new(
        "encap-blocked",
        Severity::Broken,
        "vni",
        format!("this node uses VNI {own}, but its peers use VNI {other}"),
        "the kernel drops packets with another VNI: the network configuration changed, and some daemons have not restarted since",
    );
    let finding =
        finding.seen(format!("VNI {other} in the leases of the peers"), "flannelctl leases --long");
    seen_by_probes(finding, mesh)
        .run(super::interface_remedy::restart(facts))
        .on(crate::finding::EVERYWHERE)
}

/// The rule or the policy that blocks packets on this host; `what` describes them.
fn refused_by(finding: Finding, table: &Table, what: &str) -> Finding {
    match table.input_refusal() {
        Some(refusal) => finding.seen(
            format!("the rule `{}` on this node blocks {what}", refusal.rule),
            format!("{} -S {}", table.command, word(&refusal.chain)),
        ),
        None => finding.seen(
            format!("the chain INPUT in {} blocks packets that no rule accepts", table.command),
            format!("{} -S INPUT", table.command),
        ),
    }
}

/// Adds accept rules for tunnel packets to the tables that reject them.
fn let_tunnel_in(
    facts: &Facts,
    tunnel: Encapsulation,
    family: Family,
    shut: &[&Table],
) -> Vec<String> {
    let before: Vec<(&str, Option<usize>)> = shut
        .iter()
        .map(|table| {
            (table.command.as_str(), table.input_refusal().and_then(|refusal| refusal.number))
        })
        .collect();
    // An accept rule of ufw or firewalld overrides only later rules. An operator may have put a rejecting rule before that accept rule.
    let program = match let_in::program(facts.host.firewalls.known()) {
        program if shut.iter().all(|table| table.input_refusal().is_none()) => program,
        _ => Program::Iptables,
    };
    let_in::commands(
        program,
        &tunnel.each(family),
        &Origin::of(facts, family),
        &before,
        family.pick("flannel-tunnel", "flannel-tunnel6"),
    )
}

/// True if no peer is heard, although packets of peers arrive by flannel's device: this host itself drops pings and probes.
fn drops_probes(facts: &Facts) -> bool {
    let is_deaf = facts.mesh.known().is_some_and(|mesh| !mesh.hears);
    let judged = Family::ALL.map(|family| facts.judged(family)).concat();
    let is_cut = |path: &&Path| path.verdict.state == State::CutOff;
    is_deaf && facts.host.tunnel_receives && !judged.is_empty() && judged.iter().all(is_cut)
}

/// Evidence that no peer responds: from a sample of probed peers or, in a small cluster, all of them.
fn nobody_answers(facts: &Facts) -> Option<String> {
    let mesh = facts.mesh.known()?;
    let fault = mesh
        .faults
        .iter()
        // If some peers respond, the fault is not at this node.
        .find(|fault| fault.state == State::CutOff && fault.failed == fault.asked);
    if let Some(fault) = fault {
        return Some(fault.share());
    }
    let is_cut = |path: &Path| path.verdict.state == State::CutOff;
    let nodes: BTreeSet<&str> = mesh.paths.iter().map(|path| &*path.node).collect();
    // A single silent peer may just be off. So may be peers from which the store receives nothing either.
    let is_all = nodes.len() >= MIN_NODES
        && mesh.paths.iter().all(is_cut)
        && super::leases::gone(facts).next().is_none();
    is_all.then(|| format!("all {} peers are silent", nodes.len()))
}

fn isolated(facts: &Facts) -> Vec<Finding> {
    if drops_probes(facts) {
        let what = "this host drops the pings and probes of flanneld";
        let why = "the doctor cannot see whether packets between nodes get lost. A firewall of this host may drop ICMP and flanneld's probe port";
        let seen = "packets arrive by flannel's device, but no ping and no probe";
        let finding = Finding::new("isolated", Severity::Risk, "", what, why);
        return vec![finding.seen(seen, "probes")];
    }
    let Some(share) = nobody_answers(facts) else {
        return Vec::new();
    };
    let interface = facts.underlay_name();
    let finding = Finding::new(
        "isolated",
        Severity::Broken,
        "",
        "no other node replies to this node, neither over the overlay nor over the underlay",
        "a single cause at this node is likelier than a separate failure of each peer. Check this node's link, address and routes, and firewalls in front of this node",
    )
    .within(facts.paths().iter().map(|path| path.subnet))
    .seen(share, "probes");
    let of_interface = interface.into_iter().flat_map(|interface| {
        ["-s addr", "route"].map(|what| format!("ip {what} show dev {}", word(interface)))
    });
    let mut cut = facts.paths().iter();
    let peer = cut.find(|path| path.verdict.state == State::CutOff);
    let of_peer = peer.into_iter().flat_map(asked);
    vec![finding.run_all(of_interface).run_all(of_peer)]
}

fn asked(path: &Path) -> [String; 2] {
    ["ip route get", "ping -c 3"].map(|command| format!("{command} {}", path.address))
}

fn lossy_everywhere((lost, asked): (u32, u32)) -> Finding {
    Finding::new(
        "lossy",
        Severity::Degraded,
        "all peers",
        format!("{lost} of {asked} probes to all peers were lost in five minutes"),
        "this node's network card, cable, switch or processors lose packets of pods as often as they lose probes",
    )
    .seen(format!("{lost} of {asked} probes got no reply, although the peers replied to other probes"), "probes")
    .run("ip -s link")
    .run("flannelctl peers")
}

/// The subnets of unresponsive peers for which flanneld has not queried the store yet; empty if few peers are unresponsive.
///
/// These peers have sent no packet since flanneld started, so their machines are probably gone. flanneld queries the store within `STORE_TIME`.
fn not_asked_about(facts: &Facts) -> Vec<IpNet> {
    let is_cut = |path: &&Path| !path.inferred && path.verdict.state == State::CutOff;
    let cut: Vec<&Path> = facts.paths().iter().filter(is_cut).collect();
    if cut.len() <= MAX_LISTED {
        return Vec::new();
    }
    let asked: BTreeSet<IpNet> = facts
        .peers()
        .filter(|peer| peer.silent.is_some())
        .flat_map(|peer| peer.subnets.nets())
        .collect();
    cut.into_iter()
        .filter(|path| {
            !path.ever
                && path.since.is_some_and(|since| since < STORE_TIME)
                && !asked.contains(&path.subnet)
        })
        .map(|path| path.subnet)
        .collect()
}

fn is_ready(facts: &Facts, path: &Path) -> bool {
    let node = facts.peer_at(path).and_then(|peer| peer.node);
    node.is_some_and(|node| node.ready)
}

fn peer_cut(facts: &Facts, path: &Path) -> Finding {
    let (why, node) = if is_ready(facts, path) {
        (READY, Some(format!("the Node {} is Ready", path.node)))
    } else {
        (super::leases::SILENCE, None)
    };
    let finding = Finding::new(
        "peer-cut",
        Severity::Broken,
        about(path),
        format!("{} ({}) does not respond, not even to ping", path.node, path.address),
        why,
    );
    let finding = finding.seen("no reply over the overlay or the underlay", "probes");
    let finding = match node {
        Some(text) => finding.seen(text, "kubectl get nodes"),
        None => finding,
    };
    blame(path, finding).run_all(asked(path))
}

/// If the VNIs differ, the kernel drops the packets of the peer.
fn peer_vni_differs(facts: &Facts, check: &str, path: &Path) -> Option<Finding> {
    let own = facts.network.known()?.vni?;
    let other = facts.peer_at(path)?.vni.filter(|vni| *vni != own)?;
    let alike = facts.peers().filter(|peer| peer.vni == Some(own)).count();
    let finding = Finding::new(
        check,
        Severity::Broken,
        about(path),
        format!("{} uses VNI {other}, but this node uses VNI {own}", path.node),
        "the kernel drops packets with another VNI: the network configuration changed, and some daemons have not restarted since",
    )
    .seen(
        format!("VNI {other} in the lease of {}", path.node),
        "flannelctl leases --long",
    )
    .seen(format!("VNI {own} in {alike} other leases"), "flannelctl leases --long");
    Some(finding.run(super::interface_remedy::restart(facts)).on(crate::finding::EVERYWHERE))
}

fn overlay_cut(facts: &Facts, path: &Path) -> Finding {
    if let Some(finding) = peer_vni_differs(facts, "overlay-cut", path) {
        return finding;
    }
    let is_encrypted = facts.network.known().is_some_and(Network::is_encrypted);
    let daemon = match path.verdict.ping_only {
        _ if path.refuses => " to ping but refuses probes: no flanneld listens there",
        _ if is_encrypted => " to ping; this node probes the peer's daemon only through the tunnel",
        true => " to ping, but its daemon does not reply",
        false => "",
    };
    let tunnel = facts.network.known().and_then(Network::tunnel);
    let finding = Finding::new(
        "overlay-cut",
        Severity::Broken,
        about(path),
        format!("packets that this node sends over the overlay do not reach {}", path.node),
        match tunnel {
            _ if path.refuses => format!(
                "flannel does not work on the peer, or another host has the address {}",
                path.address
            ),
            Some(tunnel) => {
                let (what, are) = (words(tunnel), is_or_are(tunnel));
                format!(
                    "the peer's address {} replies, so {what} {are} dropped on the path or at the peer, or flannel does not work on the peer",
                    path.address
                )
            }
            None => format!(
                "the peer's address {} replies, so the network between the nodes drops packets with addresses of pods, or the peer does not forward these packets",
                path.address
            ),
        },
    );
    let finding = blame(
        path,
        finding.seen(format!("{} replies over the underlay{daemon}", path.address), "probes"),
    )
    .on(there(facts, path));
    let filter = tunnel.map(|tunnel| format!("{} and ", capture(tunnel))).unwrap_or_default();
    finding.run("flannelctl doctor").run(format!(
        "tcpdump -c 5 -ni any {}",
        filter_words(&format!("{filter}host {}", path.address))
    ))
}

/// Quotes a tcpdump filter with parentheses for a shell.
fn filter_words(filter: &str) -> String {
    if filter.contains('(') { word(filter) } else { filter.to_owned() }
}

fn one_way(facts: &Facts, path: &Path) -> Finding {
    if let Some(finding) = peer_vni_differs(facts, "one-way", path) {
        return finding;
    }
    let tunnel = facts.network.known().and_then(Network::tunnel);
    let dropped = tunnel.map(|tunnel| format!(" ({})", words(tunnel))).unwrap_or_default();
    let finding = Finding::new(
        "one-way",
        Severity::Broken,
        about(path),
        format!("{} receives this node's probes, but its replies do not arrive", path.node),
        format!(
            "packets from the peer to this node get lost{dropped}, or wrong routes, neighbours or FDB entries on the peer misdirect these packets"
        ),
    );
    blame(
        path,
        finding.seen(
            "the peer reports that it just received this node's probe over the overlay",
            "probes",
        ),
    )
    .run("flannelctl doctor")
    .on(there(facts, path))
}

fn wrong_node(_: &Facts, path: &Path) -> Finding {
    let other = path.answered_by.as_deref().unwrap_or("another node");
    Finding::new(
        "wrong-node",
        Severity::Broken,
        about(path),
        format!("{other} replies in place of {}", path.node),
        format!(
            "two machines have the address {}, or a lease remains from a machine that is gone",
            path.address
        ),
    )
    .seen(format!("{} was probed, {other} replied", path.address), "probes")
    .run("flannelctl leases --long")
    .run(format!("ip neighbour show {}", path.address))
}

fn lossy(_: &Facts, path: &Path) -> Finding {
    let (lost, asked) = path.losses;
    let what = format!("{lost} of the last {asked} probes to {} were lost", path.node);
    let seen = format!("{lost} of {asked} lost");
    let finding = Finding::new(
        "lossy",
        Severity::Degraded,
        about(path),
        what,
        "the network between the nodes, or the network card of a node, loses packets",
    );
    blame(path, finding.seen(seen, "probes")).run(format!("ping -i 0.2 -c 50 {}", path.address))
}

fn slow(_: &Facts, path: &Path) -> Finding {
    let rtt =
        path.rtt.map(|rtt| format!("{}.{:02} ms", rtt / 1000, rtt % 1000 / 10)).unwrap_or_default();
    let finding = Finding::new(
        "slow",
        Severity::Degraded,
        about(path),
        format!("{} replies after {rtt}, much later than usual", path.node),
        "the path is congested or long, or the peer is overloaded",
    );
    blame(path, finding.seen(format!("a round trip takes {rtt}"), "probes"))
        .run(format!("ping -c 10 {}", path.address))
}

fn probe_filtered(facts: &Facts) -> Vec<Finding> {
    let (Some(network), Some(mesh)) = (facts.network.known(), facts.mesh.known()) else {
        return Vec::new();
    };
    let lasts = |path: &&Path| path.since.is_none_or(|since| since >= RESTART_TIME);
    let silent = mesh
        .paths
        .iter()
        .filter(|path| path.verdict.ping_only && path.ours && path.verdict.state.passes())
        .filter(lasts);
    // A host rejects probes to a closed port, as some firewalls do. Most firewalls drop them.
    let (refusing, filtered): (Vec<&Path>, Vec<&Path>) = silent.partition(|path| path.refuses);
    let (port, all) = (mesh.port, mesh.paths.len());
    let names = |paths: &[&Path]| {
        let names = paths.iter().take(4).map(|path| there(facts, path));
        let names: BTreeSet<String> = names.collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    let unseen = "probes to these peers cannot detect loss in one direction, replies of the wrong node or the usable MTU";
    let finding = |about, what: String, why: String, paths: &[&Path], seen| {
        let names = names(paths);
        Finding::new("probe-filtered", Severity::Risk, about, what, why)
            .seen(format!("{names} reply to ping but {seen} UDP port {port}"), "probes")
            .about_peers(paths.iter().map(|path| &*path.node))
            .run("flannelctl doctor")
            .on(names)
    };
    let mut findings = Vec::new();
    if let Some(first) = filtered.first() {
        let family = Family::from(first.address);
        let program = family.pick("iptables", "ip6tables");
        let origin = Origin::of(facts, family).of_probes(facts, network);
        let what = format!(
            "{} of {all} peers reply only to ping: flanneld hangs on these nodes, or a firewall filters UDP port {port}",
            filtered.len()
        );
        let why = format!(
            "traffic between pods works, but {unseen}. Run the doctor on these peers to find the cause"
        );
        findings.push(finding("", what, why, &filtered, "not on").run_all(let_in::commands(
            let_in::program(facts.host.firewalls.known()),
            &[Encapsulation::udp(port)],
            &origin,
            &[(program, None)],
            "flannel-probes",
        )));
    }
    if !refusing.is_empty() {
        let what =
            format!("{} of {all} peers refuse the probes on UDP port {port}", refusing.len());
        let why = format!(
            "flanneld is not running on these nodes or uses another --probe-port (or 0, which disables probing), or a firewall rejects the probes. Traffic works, but {unseen}"
        );
        findings.push(finding("refused", what, why, &refusing, "refuse probes on"));
    }
    findings
}

fn clock(facts: &Facts) -> Vec<Finding> {
    let mut ahead: Vec<i64> = facts.paths().iter().filter_map(|path| path.clock_ahead).collect();
    ahead.sort_unstable();
    let Some(median) = ahead.get(ahead.len() / 2).copied() else {
        return Vec::new();
    };
    let far = ahead.iter().filter(|offset| offset.abs() > MAX_CLOCK_OFFSET).count();
    if far * 2 <= ahead.len() || median.abs() <= MAX_CLOCK_OFFSET {
        return Vec::new();
    }
    let (side, seconds) = (if median > 0 { "behind" } else { "ahead of" }, median.abs() / 1000);
    vec![
        Finding::new(
            "clock",
            Severity::Risk,
            "",
            format!("the clock of this node is {seconds} s {side} the clocks of most peers"),
            "certificates may seem expired or not valid yet, and you cannot put the logs of several nodes in order",
        )
        .seen(format!("the clocks of {far} of {} peers differ from this node's clock by more than {} s", ahead.len(), MAX_CLOCK_OFFSET / 1000), "probes")
        .run("timedatectl set-ntp true")
        .run("timedatectl timesync-status || chronyc tracking"),
    ]
}
