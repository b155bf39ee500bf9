//! The results of probes: the fault is a peer, the path to it, or this node.

use crate::check::Check;
use crate::encapsulation::{capture, is_or_are, words};
use crate::facts::mesh::{Mesh, Path, State};
use crate::facts::{Facts, Network};
use crate::finding::{Finding, SEVERAL, Severity};
use crate::firewalls::{Carried, Drop, Table};
use crate::let_in::{self, Origin, Program};
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use std::collections::BTreeSet;
use types::{Encapsulation, Family};

/// How far most peers' clocks may be from ours, in milliseconds.
const MAX_CLOCK_OFFSET: i64 = 5000;
/// How long a daemon may be silent while it restarts, in seconds. Only after that its port is taken to be filtered.
const RESTART_TIME: u64 = 30;
/// How long it takes until the store was asked about many silent peers, in seconds.
const STORE_TIME: u64 = 180;
/// For each peer that is cut off, so many others have to show that the tunnel is blocked.
const MIN_CUT: usize = 4;
/// So many peers have to be silent before the cause is sought at this end.
const MIN_NODES: usize = 2;
/// How many peers have a finding each. Of more of them one finding tells.
const MAX_LISTED: usize = 3;

/// The checks of which each finding is about peers, here and among the leases.
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

/// Returns whether the findings of a check are about peers, not about this node.
pub fn is_about_peers(check: &str) -> bool {
    ABOUT_PEERS.contains(&check)
}

/// Why a peer answers nothing though its kubelet reports.
const READY: &str = "its machine runs, for its kubelet reports: a firewall drops ping and probes on the way or there, its network to the nodes is down, or its lease names an address that does not lead to it";

/// The checks of this group.
pub const CHECKS: &[Check] = &[
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
        "No other node answers this one",
        &["peer-cut"],
        isolated,
    ),
    check(
        "peer-cut",
        Severity::Broken,
        "A peer answers nothing",
        &[],
        |facts| {
            // Those whose machine is gone have a finding of their own.
            let gone: BTreeSet<IpNet> = super::leases::gone(facts)
                .flat_map(|peer| peer.subnets.nets())
                .chain(not_asked_about(facts))
                .collect();
            each(
                facts,
                |path| path.verdict.state == State::CutOff && !gone.contains(&path.subnet),
                peer_cut,
                "answer nothing, ping neither",
            )
        },
    ),
    check(
        "overlay-cut",
        Severity::Broken,
        "Packets through the overlay do not reach a peer",
        &[],
        |facts| {
            each(
                facts,
                |path| path.verdict.state == State::OverlayCut,
                overlay_cut,
                "do not receive what this node sends through the overlay",
            )
        },
    ),
    check(
        "one-way",
        Severity::Broken,
        "A peer hears this node, and its answers get lost",
        &[],
        |facts| {
            each(
                facts,
                |path| path.verdict.state == State::OneWay,
                one_way,
                "hear this node, and their answers do not arrive",
            )
        },
    ),
    check(
        "wrong-node",
        Severity::Broken,
        "Another node answers in a peer's place",
        &[],
        |facts| {
            each(
                facts,
                |path| path.verdict.state == State::WrongNode,
                wrong_node,
                "have others that answer in their place",
            )
        },
    ),
    check(
        "lossy",
        Severity::Degraded,
        "The way to a peer loses packets",
        &[],
        |facts| match facts.mesh.known().and_then(|mesh| mesh.lost_everywhere) {
            Some(counts) => vec![lossy_everywhere(counts)],
            None => each(
                facts,
                |path| path.verdict.state == State::LosesSome,
                lossy,
                "lose packets on the way",
            ),
        },
    ),
    check(
        "slow",
        Severity::Degraded,
        "The way to a peer is slow",
        &[],
        |facts| {
            each(
                facts,
                |path| path.verdict.state == State::Slow,
                slow,
                "answer much later than usual",
            )
        },
    ),
    check(
        "probe-filtered",
        Severity::Risk,
        "A peer answers ping and no probes",
        &[],
        probe_filtered,
    ),
    check(
        "clock",
        Severity::Risk,
        "This node's clock is wrong",
        &[],
        clock,
    ),
];

const fn check(
    id: &'static str,
    severity: Severity,
    title: &'static str,
    explains: &'static [&'static str],
    judge: fn(&Facts) -> Vec<Finding>,
) -> Check {
    Check {
        id,
        severity,
        title,
        needs: &[Need::Network, Need::Mesh],
        explains,
        waits: true,
        judge,
    }
}

/// The paths to the peers, as the probes found them.
pub(super) fn paths(facts: &Facts) -> &[Path] {
    facts.mesh.known().map_or(&[], |mesh| &mesh.paths)
}

/// One finding a path if they are few, otherwise one for all of them. `several`: what is so of more than one.
fn each(
    facts: &Facts,
    is: impl Fn(&Path) -> bool,
    tell: impl Fn(&Facts, &Path) -> Finding,
    several: &str,
) -> Vec<Finding> {
    let hit: Vec<&Path> = paths(facts)
        .iter()
        .filter(|path| !path.inferred && is(path))
        .collect();
    let told = hit
        .iter()
        .take(MAX_LISTED)
        .map(|path| tell(facts, path).about_peers([&*path.node]));
    if hit.len() <= MAX_LISTED {
        return told.collect();
    }
    let mut told = told.collect::<Vec<_>>().into_iter();
    let Some(first) = told.next() else {
        return Vec::new();
    };
    let names: Vec<&str> = hit
        .iter()
        .take(MAX_LISTED)
        .map(|path| &*path.node)
        .collect();
    let what = format!(
        "{} peers {several}: {} and {} more",
        hit.len(),
        names.join(", "),
        hit.len() - MAX_LISTED
    );
    let finding = Finding::new(
        &first.check,
        first.severity,
        SEVERAL,
        what,
        first.why.clone(),
    )
    .about_peers(hit.iter().map(|path| &*path.node));
    let finding = [first]
        .into_iter()
        .chain(told)
        .filter_map(|finding| Some((finding.what, finding.evidence.into_iter().next()?.from)))
        .fold(finding, |finding, (text, from)| finding.seen(text, from));
    vec![finding.run("flannelctl peers")]
}

/// Adds what other nodes report of a peer, which shows whether the fault is the peer, the path, or this node.
fn blame(path: &Path, finding: Finding) -> Finding {
    let reached = |reach: u16| {
        if reach == 1 {
            "1 other node reaches it".to_owned()
        } else {
            format!("{reach} other nodes reach it")
        }
    };
    let text = match path.others {
        Some((0, 1)) => format!(
            "the other node that was asked does not reach it either: the trouble is at {}",
            path.node
        ),
        Some((0, fail)) if fail > 1 => format!(
            "none of {fail} other nodes reaches it either: the trouble is at {}",
            path.node
        ),
        Some((reach, 0)) if reach > 0 => {
            format!("{}: the trouble is on the way, or here", reached(reach))
        }
        Some((reach, 1)) if reach > 0 => format!(
            "{}, one does not: the trouble is on the way",
            reached(reach)
        ),
        Some((reach, fail)) if reach > 0 => format!(
            "{}, {fail} do not: the trouble is on the way",
            reached(reach)
        ),
        _ => return finding,
    };
    finding.seen(text, "other nodes")
}

fn about(path: &Path) -> String {
    format!("{} {}", path.node, path.subnet)
}

fn there(path: &Path) -> String {
    path.node.to_string()
}

/// Whether one cause at this end is enough for all of it, in one family of the underlay.
fn all_blocked(mesh: &Mesh, family: Family) -> bool {
    let is_cut = |state| [State::OverlayCut, State::OneWay].contains(&state);
    let of_family = || {
        mesh.paths
            .iter()
            .filter(|path| Family::from(path.address) == family)
    };
    if mesh.faults.iter().any(|fault| is_cut(fault.state)) {
        return of_family().any(|path| is_cut(path.verdict.state));
    }
    let (off, judged): (Vec<&Path>, Vec<&Path>) = of_family()
        .filter(|path| path.verdict.state != State::Unknown)
        .partition(|path| path.verdict.state == State::CutOff);
    // Some machines may be off as well.
    if off.len() * MIN_CUT > judged.len() {
        return false;
    }
    let cut = |path: &&Path| path.verdict.state == State::OverlayCut;
    let one_way = |path: &&Path| path.verdict.state == State::OneWay;
    // A single peer that receives our packets may have a wrong entry for us.
    !judged.is_empty()
        && judged.iter().all(|path| path.underlay)
        && (judged.iter().all(cut) || judged.len() > 1 && judged.iter().all(one_way))
}

/// What drops the tunnel's packets on this host, where no packet of a family arrives though peers are there.
fn dropped_here(facts: &Facts, family: Family) -> Vec<&Drop> {
    let judged: Vec<&Path> = paths(facts)
        .iter()
        .filter(|path| Family::from(path.address) == family && path.verdict.state != State::Unknown)
        .collect();
    let is_missed =
        judged.iter().all(|path| path.is_lost()) && judged.iter().any(|path| path.underlay);
    [Carried::TunnelIn, Carried::TunnelOut]
        .into_iter()
        .flat_map(|carried| super::drops::of(facts, carried))
        .filter(|drop| is_missed && drop.family == family)
        .collect()
}

/// The VNI that all peers have, if it is another one than this node's.
fn other_vni(facts: &Facts, network: &Network) -> Option<(u32, u32)> {
    let own = network.vni?;
    let mut vnis = facts
        .leases
        .peers
        .known()
        .into_iter()
        .flatten()
        .filter_map(|peer| peer.vni);
    let first = vnis.next()?;
    (first != own && vnis.all(|vni| vni == first)).then_some((own, first))
}

/// Where the tunnel is blocked, as far as it is seen here.
struct Blocked<'a> {
    /// The families of the underlay.
    families: Vec<Family>,
    /// The tables of iptables here that refuse it.
    tables: Vec<&'a Table>,
    /// What else drops it here.
    drops: Vec<&'a Drop>,
}

impl<'a> Blocked<'a> {
    fn of(facts: &'a Facts, network: &Network, mesh: &Mesh) -> Self {
        let families: Vec<Family> = Family::ALL
            .into_iter()
            .filter(|family| {
                network.travels_in(*family)
                    && (all_blocked(mesh, *family) || !dropped_here(facts, *family).is_empty())
            })
            .collect();
        let tables = facts
            .host
            .firewalls
            .known()
            .into_iter()
            .flat_map(|firewalls| &firewalls.tables)
            .filter(|table| table.is_shut() && families.contains(&Family::from(table.network)))
            .collect();
        let drops = families
            .iter()
            .flat_map(|family| dropped_here(facts, *family))
            .collect();
        Self {
            families,
            tables,
            drops,
        }
    }

    /// Whether this host drops it.
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
    let blocked = Blocked::of(facts, network, mesh);
    // With WireGuard the keys may be to blame as well, unless this host refuses the port.
    if blocked.families.is_empty() || network.is_encrypted() && !blocked.is_here() {
        return Vec::new();
    }
    if let Some(vnis) = other_vni(facts, network).filter(|_| !blocked.is_here()) {
        return vec![vni_differs(facts, mesh, vnis)];
    }
    let what = words(tunnel);
    let mut finding = seen_by_probes(blocked_words(network, mesh, tunnel, &blocked), mesh);
    let mut commands = Vec::new();
    for family in &blocked.families {
        let shut: Vec<&Table> = blocked
            .tables
            .iter()
            .copied()
            .filter(|table| Family::from(table.network) == *family)
            .collect();
        finding = shut
            .iter()
            .fold(finding, |finding, table| refused_by(finding, table, &what));
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
        // Nothing on this host drops them visibly: captures on the hosts show where they are lost.
        let capture = format!("tcpdump -c 5 -ni any {}", filter_words(&capture(tunnel)));
        return vec![
            finding
                .run("flannelctl doctor")
                .run(capture)
                .on(crate::finding::EVERYWHERE),
        ];
    }
    vec![finding.run_all(commands)]
}

/// The finding without evidence and commands.
fn blocked_words(
    network: &Network,
    mesh: &Mesh,
    tunnel: Encapsulation,
    blocked: &Blocked<'_>,
) -> Finding {
    let what = words(tunnel);
    let families = Family::ALL
        .into_iter()
        .filter(|family| network.travels_in(*family));
    let only = match blocked.families.as_slice() {
        [family] if families.count() > 1 => Some(*family),
        _ => None,
    };
    let over = only
        .map(|family| format!(" over {family}"))
        .unwrap_or_default();
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
                "a rule of this host drops {what}: peers reply over the underlay and not over the overlay"
            )
        } else {
            format!(
                "peers reply over the underlay and not over the overlay: a firewall on a host, in a security group or in a hypervisor drops {what}"
            )
        },
    );
    match only {
        Some(family) => finding.of(family),
        None => finding,
    }
}

/// On which part of the way packets of the tunnel are lost.
fn where_blocked(mesh: &Mesh, tables: &[&Table], drops: &[&Drop]) -> &'static str {
    let only_sent = !drops.is_empty()
        && tables.is_empty()
        && drops.iter().all(|drop| drop.carried == Carried::TunnelOut);
    let incoming = || {
        mesh.paths
            .iter()
            .any(|path| path.verdict.state == State::OneWay)
    };
    if only_sent {
        "by this node"
    } else if !tables.is_empty() || !drops.is_empty() || incoming() {
        "to this node"
    } else {
        "on the way, or at the peers"
    }
}

/// Adds what probes found of the first peers.
fn seen_by_probes(finding: Finding, mesh: &Mesh) -> Finding {
    let finding = mesh.faults.iter().fold(finding, |finding, fault| {
        finding.seen(fault.share(), "probes")
    });
    let cut = mesh
        .paths
        .iter()
        .filter(|path| !path.inferred && path.underlay && path.is_lost());
    cut.take(4).fold(finding, |finding, path| {
        let through = match path.verdict.state {
            State::OneWay => "its answers get lost",
            _ => "nothing arrives",
        };
        finding.seen(
            format!(
                "{} at {} replies over the underlay, and over the overlay {through}",
                path.node, path.address
            ),
            "probes",
        )
    })
}

/// The finding where this node and its peers have different VNIs.
fn vni_differs(facts: &Facts, mesh: &Mesh, (own, other): (u32, u32)) -> Finding {
    let finding = Finding::new(
        "encap-blocked",
        Severity::Broken,
        "vni",
        format!("this node uses VNI {own}, its peers use VNI {other}"),
        "the kernel drops packets of another VNI: the network configuration changed, and not every daemon was restarted since",
    );
    let finding = finding.seen(
        format!("VNI {other} in the leases of the peers"),
        "flannelctl leases --long",
    );
    seen_by_probes(finding, mesh)
        .run(super::interface_remedy::restart(facts))
        .on(crate::finding::EVERYWHERE)
}

/// Adds what refuses the packets `what` in a table of this host.
fn refused_by(finding: Finding, table: &Table, what: &str) -> Finding {
    match table.input_refusal() {
        Some(refusal) => finding.seen(
            format!("the rule `{}` here refuses {what}", refusal.rule),
            format!("{} -S {}", table.command, word(&refusal.chain)),
        ),
        None => finding.seen(
            format!(
                "what no rule of INPUT in {} accepts is refused here",
                table.command
            ),
            format!("{} -S INPUT", table.command),
        ),
    }
}

/// The commands that accept the tunnel of a family in the tables that refuse it.
fn let_tunnel_in(
    facts: &Facts,
    tunnel: Encapsulation,
    family: Family,
    shut: &[&Table],
) -> Vec<String> {
    let before: Vec<(&str, Option<usize>)> = shut
        .iter()
        .map(|table| {
            (
                table.command.as_str(),
                table.input_refusal().and_then(|refusal| refusal.number),
            )
        })
        .collect();
    // ufw and firewalld accept before a rule that follows theirs, and not before one that an operator put in front.
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

/// What shows that all peers are cut off: the probes of some of them, or in a small cluster, of which each was asked, of all.
fn nobody_answers(facts: &Facts) -> Option<String> {
    let mesh = facts.mesh.known()?;
    let fault = mesh
        .faults
        .iter()
        // Where others answer, this end is well.
        .find(|fault| fault.state == State::CutOff && fault.failed == fault.asked);
    if let Some(fault) = fault {
        return Some(fault.share());
    }
    let is_cut = |path: &Path| path.verdict.state == State::CutOff;
    let nodes: BTreeSet<&str> = mesh.paths.iter().map(|path| &*path.node).collect();
    // One silent peer may as well be off, and so are those that the store does not hear either.
    let is_all = nodes.len() >= MIN_NODES
        && mesh.paths.iter().all(is_cut)
        && super::leases::gone(facts).next().is_none();
    is_all.then(|| format!("all {} peers are silent", nodes.len()))
}

/// The finding where all peers are cut off.
fn isolated(facts: &Facts) -> Vec<Finding> {
    let Some(share) = nobody_answers(facts) else {
        return Vec::new();
    };
    let choice = facts.daemon.choice.known();
    let interface = choice.map(|choice| choice.interface.as_str());
    let finding = Finding::new(
        "isolated",
        Severity::Broken,
        "",
        "no other node answers this one, neither over the overlay nor over the underlay",
        "one cause at this end is likelier than so many nodes that are off: the link of this node, its address, its routes, or a firewall in front of it",
    )
    .seen(share, "probes");
    let finding = match interface {
        Some(interface) => finding
            .run(format!("ip -s addr show dev {}", word(interface)))
            .run(format!("ip route show dev {}", word(interface))),
        None => finding,
    };
    let peer = paths(facts)
        .iter()
        .find(|path| path.verdict.state == State::CutOff);
    vec![match peer {
        Some(peer) => finding
            .run(format!("ip route get {}", peer.address))
            .run(format!("ping -c 3 {}", peer.address)),
        None => finding,
    }]
}

/// The finding where questions to all peers are lost.
fn lossy_everywhere((lost, asked): (u32, u32)) -> Finding {
    Finding::new(
        "lossy",
        Severity::Degraded,
        "all peers",
        format!("{lost} of {asked} questions to all peers were lost in five minutes"),
        "the network card of this node, its cable, its switch or its processors lose packets: those of pods are lost as often",
    )
    .seen(format!("{lost} of {asked} got no answer, from peers that answered other questions"), "probes")
    .run("ip -s link")
    .run("flannelctl peers")
}

/// Peers that were never heard while this daemon runs, and about which the store was not asked yet, where they are many: leases of machines that
/// are long gone. The store is asked in a minute or two.
fn not_asked_about(facts: &Facts) -> Vec<IpNet> {
    let is_cut = |path: &&Path| !path.inferred && path.verdict.state == State::CutOff;
    let cut: Vec<&Path> = paths(facts).iter().filter(is_cut).collect();
    if cut.len() <= MAX_LISTED {
        return Vec::new();
    }
    let asked: BTreeSet<IpNet> = facts
        .leases
        .peers
        .known()
        .into_iter()
        .flatten()
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

/// Whether Kubernetes hears the machine of a peer.
fn is_ready(facts: &Facts, path: &Path) -> bool {
    let mut peers = facts.leases.peers.known().into_iter().flatten();
    let peer = peers.find(|peer| peer.subnets.nets().any(|net| net == path.subnet));
    peer.and_then(|peer| peer.node)
        .is_some_and(|node| node.ready)
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
        format!(
            "{} at {} answers nothing, ping neither",
            path.node, path.address
        ),
        why,
    );
    let finding = finding.seen("no reply over the overlay or the underlay", "probes");
    let finding = match node {
        Some(text) => finding.seen(text, "kubectl get nodes"),
        None => finding,
    };
    blame(path, finding)
        .run(format!("ip route get {}", path.address))
        .run(format!("ping -c 3 {}", path.address))
}

/// The finding where a peer publishes another VNI than this node has: the kernel drops its packets.
fn peer_vni_differs(facts: &Facts, check: &str, path: &Path) -> Option<Finding> {
    let own = facts.network.known()?.vni?;
    let peers = facts.leases.peers.known()?;
    let peer = peers
        .iter()
        .find(|peer| peer.subnets.nets().any(|net| net == path.subnet))?;
    let other = peer.vni.filter(|vni| *vni != own)?;
    let alike = peers.iter().filter(|peer| peer.vni == Some(own)).count();
    let finding = Finding::new(
        check,
        Severity::Broken,
        about(path),
        format!("{} uses VNI {other}, this node uses VNI {own}", path.node),
        "the kernel drops packets of another VNI: the network configuration changed, and not every daemon was restarted since",
    )
    .seen(
        format!("VNI {other} in the lease of {}", path.node),
        "flannelctl leases --long",
    )
    .seen(format!("VNI {own} in {alike} other leases"), "flannelctl leases --long");
    Some(
        finding
            .run(super::interface_remedy::restart(facts))
            .on(crate::finding::EVERYWHERE),
    )
}

fn overlay_cut(facts: &Facts, path: &Path) -> Finding {
    if let Some(finding) = peer_vni_differs(facts, "overlay-cut", path) {
        return finding;
    }
    let is_encrypted = facts.network.known().is_some_and(Network::is_encrypted);
    let daemon = match path.verdict.ping_only {
        _ if is_encrypted => " to ping; its daemon is asked through the tunnel alone",
        true => "; its daemon is silent, ping is not",
        false => "",
    };
    let tunnel = facts.network.known().and_then(Network::tunnel);
    let finding = Finding::new(
        "overlay-cut",
        Severity::Broken,
        about(path),
        format!(
            "what this node sends through the overlay does not reach {}",
            path.node
        ),
        match tunnel {
            Some(tunnel) => {
                let (what, are) = (words(tunnel), is_or_are(tunnel));
                format!(
                    "its address {} answers, so {what} {are} dropped on the way or there, or flannel does not work there",
                    path.address
                )
            }
            None => format!(
                "its address {} answers, so the network between the nodes drops packets with addresses of pods, or that node does not forward them",
                path.address
            ),
        },
    );
    let finding = blame(
        path,
        finding.seen(
            format!("{} replies over the underlay{daemon}", path.address),
            "probes",
        ),
    )
    .on(there(path));
    let filter = tunnel
        .map(|tunnel| format!("{} and ", capture(tunnel)))
        .unwrap_or_default();
    finding.run("flannelctl doctor").run(format!(
        "tcpdump -c 5 -ni any {}",
        filter_words(&format!("{filter}host {}", path.address))
    ))
}

/// A filter as a shell takes it: parentheses are quoted.
fn filter_words(filter: &str) -> String {
    if filter.contains('(') {
        word(filter)
    } else {
        filter.to_owned()
    }
}

fn one_way(facts: &Facts, path: &Path) -> Finding {
    if let Some(finding) = peer_vni_differs(facts, "one-way", path) {
        return finding;
    }
    let tunnel = facts.network.known().and_then(Network::tunnel);
    let dropped = tunnel
        .map(|tunnel| format!(" ({})", words(tunnel)))
        .unwrap_or_default();
    let finding = Finding::new(
        "one-way",
        Severity::Broken,
        about(path),
        format!(
            "{} hears this node, and its answers do not arrive",
            path.node
        ),
        format!(
            "packets from there to here are dropped{dropped}, or that node sends them elsewhere: its entries for this node are wrong"
        ),
    );
    blame(
        path,
        finding.seen(
            "by its own words it heard this node through the overlay just now",
            "probes",
        ),
    )
    .run("flannelctl doctor")
    .on(there(path))
}

fn wrong_node(_: &Facts, path: &Path) -> Finding {
    let other = path.answered_by.as_deref().unwrap_or("another node");
    Finding::new(
        "wrong-node",
        Severity::Broken,
        about(path),
        format!("{other} answers in the place of {}", path.node),
        format!(
            "two machines have the address {}, or a lease is left of a machine that is no more",
            path.address
        ),
    )
    .seen(
        format!("{} was asked, {other} answered", path.address),
        "probes",
    )
    .run("flannelctl leases --long")
    .run(format!("ip neighbour show {}", path.address))
}

fn lossy(_: &Facts, path: &Path) -> Finding {
    let (what, seen) = if path.lost < 2 {
        // It has added up in the course of an hour.
        (
            format!(
                "{} left two in a hundred questions of an hour without an answer",
                path.node
            ),
            "2 of 100 lost".to_owned(),
        )
    } else {
        (
            format!(
                "{} of the last 16 questions to {} were lost",
                path.lost, path.node
            ),
            format!("{} of 16 lost", path.lost),
        )
    };
    let finding = Finding::new(
        "lossy",
        Severity::Degraded,
        about(path),
        what,
        "the network between the nodes, or the network card of one, loses packets",
    );
    blame(path, finding.seen(seen, "probes")).run(format!("ping -i 0.2 -c 50 {}", path.address))
}

fn slow(_: &Facts, path: &Path) -> Finding {
    let rtt = path
        .rtt
        .map(|rtt| format!("{}.{:02} ms", rtt / 1000, rtt % 1000 / 10))
        .unwrap_or_default();
    let finding = Finding::new(
        "slow",
        Severity::Degraded,
        about(path),
        format!("{} answers after {rtt}, much later than usual", path.node),
        "the way is congested or long, or that machine is overloaded",
    );
    blame(
        path,
        finding.seen(format!("a round trip takes {rtt}"), "probes"),
    )
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
    // A closed port refuses, and so do some firewalls; most of them drop.
    let (refusing, filtered): (Vec<&Path>, Vec<&Path>) = silent.partition(|path| path.refuses);
    let (port, all) = (mesh.port, mesh.paths.len());
    let names = |paths: &[&Path]| {
        paths
            .iter()
            .take(4)
            .map(|path| &*path.node)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
            .join(", ")
    };
    let unseen = "loss in one direction, wrong nodes and the usable MTU are not noticed there";
    let mut findings = Vec::new();
    if let Some(first) = filtered.first() {
        let family = Family::from(first.address);
        let program = family.pick("iptables", "ip6tables");
        let origin = Origin::of(facts, family).of_probes(facts, network);
        findings.push(
            Finding::new(
                "probe-filtered",
                Severity::Risk,
                "",
                format!(
                    "{} of {all} peers answer ping alone: flanneld hangs there, or UDP port {port} is filtered",
                    filtered.len()
                ),
                format!("traffic between pods is well; {unseen}. The doctor on that node tells one from the other"),
            )
            .seen(
                format!("{} answer ping and not UDP port {port}", names(&filtered)),
                "probes",
            )
            .about_peers(filtered.iter().map(|path| &*path.node))
            .run("flannelctl doctor")
            .run_all(let_in::commands(
                let_in::program(facts.host.firewalls.known()),
                &[Encapsulation::udp(port)],
                &origin,
                &[(program, None)],
                "flannel-probes",
            ))
            .on(names(&filtered)),
        );
    }
    if !refusing.is_empty() {
        findings.push(
            Finding::new(
                "probe-filtered",
                Severity::Risk,
                "refused",
                format!("{} of {all} peers refuse the probes on UDP port {port}", refusing.len()),
                format!("flanneld does not run there, it runs with another --probe-port or with 0, or a firewall rejects the probes; traffic is well, and {unseen}"),
            )
            .seen(format!("{} answer ping, and refuse UDP port {port}", names(&refusing)), "probes")
            .about_peers(refusing.iter().map(|path| &*path.node))
            .run("flannelctl doctor")
            .on(names(&refusing)),
        );
    }
    findings
}

fn clock(facts: &Facts) -> Vec<Finding> {
    let mut ahead: Vec<i64> = paths(facts)
        .iter()
        .filter_map(|path| path.clock_ahead)
        .collect();
    ahead.sort_unstable();
    let Some(median) = ahead.get(ahead.len() / 2).copied() else {
        return Vec::new();
    };
    let far = ahead
        .iter()
        .filter(|offset| offset.abs() > MAX_CLOCK_OFFSET)
        .count();
    if far * 2 <= ahead.len() || median.abs() <= MAX_CLOCK_OFFSET {
        return Vec::new();
    }
    let (side, seconds) = (
        if median > 0 { "behind" } else { "ahead of" },
        median.abs() / 1000,
    );
    vec![
        Finding::new(
            "clock",
            Severity::Risk,
            "",
            format!("the clock of this node is {seconds} s {side} that of most peers"),
            "certificates may not be valid yet or any more, and logs of several nodes cannot be put in order",
        )
        .seen(format!("{far} of {} peers differ by more than {} s", ahead.len(), MAX_CLOCK_OFFSET / 1000), "probes")
        .run("timedatectl set-ntp true")
        .run("timedatectl timesync-status || chronyc tracking"),
    ]
}
