//! Summary of the network's health in one sentence, which the status page shows at the top.

use crate::Node;
use crate::facts::{since, span};
use doctor::{Finding, Severity};
use probing::view::{Mesh, PeerView, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;
use types::reachability::{Impact, State};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sentence {
    pub level: Health,
    pub title: String,
    /// Figures or a cause.
    pub text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No fault is known.
    Good,
    /// No fault is known, but not enough probe results exist.
    #[default]
    Unknown,
    /// Some pod packets get lost, or a fault leads to packet loss.
    Warn,
    /// Pod packets get lost.
    Bad,
}

impl Health {
    /// As in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Health::Good => "good",
            Health::Unknown => "unknown",
            Health::Warn => "warn",
            Health::Bad => "bad",
        }
    }

    /// As the status page shows it.
    pub const fn sign(self) -> &'static str {
        match self {
            Health::Good => "✓",
            Health::Unknown => "?",
            Health::Warn => "!",
            Health::Bad => "✕",
        }
    }
}

/// The first of these faults determines the sentence: an unready node, an unreachable peer, a finding of severity
/// `broken`. Otherwise, the sentence is about lost packets, faults of other nodes, or findings of severity
/// `degraded`, in this order.
pub(crate) fn sentence(node: &Node) -> Sentence {
    unready(node)
        .or_else(|| unreached(node))
        .or_else(|| found(node, Severity::Broken, Health::Bad))
        .or_else(|| impaired(node))
        .or_else(|| elsewhere(node))
        .or_else(|| found(node, Severity::Degraded, Health::Warn))
        .unwrap_or_else(|| well(node))
}

fn new(level: Health, title: impl Into<String>, text: impl Into<String>) -> Sentence {
    Sentence { level, title: title.into(), text: text.into() }
}

/// If flanneld hangs or the node is not ready.
fn unready(node: &Node) -> Option<Sentence> {
    let name = &node.node;
    if let Some(silent) = &node.readiness.silent {
        return Some(new(Health::Bad, format!("flanneld hangs on {name}"), silent));
    }
    if node.readiness.ready {
        return None;
    }
    let reasons = node.readiness.reasons.iter();
    let text: Vec<String> = reasons.map(|reason| reason.text.clone()).collect();
    let name = if name.is_empty() { "This node" } else { name };
    Some(new(Health::Bad, format!("{name} is not ready"), text.join(" · ")))
}

/// If packets from this node do not reach a peer, or if its replies do not arrive.
fn unreached(node: &Node) -> Option<Sentence> {
    let mesh = node.mesh.as_ref()?;
    let cut: Vec<&PeerView> = with_impact(mesh, Impact::All).collect();
    let first = cut.first()?;
    let passing = mesh.peers.iter().filter(|peer| peer.state.passes()).count();
    let cause = cause_of(node, &cut);
    let why = cause.map(|finding| format!("{}. ", finding.what.trim_end_matches('.')));
    let why = why.unwrap_or_default();
    let age = cut.iter().map(|peer| peer.state_age_ms).max().unwrap_or(0);
    let since = format!("For {}.", span(Duration::from_millis(age)));
    if passing == 0 && cut.len() > 1 {
        let title = format!("{} reaches no other node", node.node);
        return Some(new(Health::Bad, title, format!("{why}{since}")));
    }
    if nodes(&cut) > 1 {
        let title = format!("{} no longer reaches {} nodes", node.node, nodes(&cut));
        let names: Vec<String> = cut.iter().map(|peer| peer.title()).take(3).collect();
        let more = if nodes(&cut) > 3 { " …" } else { "" };
        let text = format!("{}{more}. {why}{since}", names.join(", "));
        return Some(new(Health::Bad, title, text));
    }
    let name = first.title();
    let (title, detail) = match first.state {
        State::CutOff => (
            format!("{name} is cut off"),
            "The peer replies neither over the overlay nor over the underlay.",
        ),
        State::OneWay => (
            format!("Replies of {name} get lost"),
            "The peer receives packets over the overlay, but its replies do not arrive.",
        ),
        State::WrongNode => (
            format!("Another node replies at the address of {name}"),
            "Two machines have the same address.",
        ),
        _ => (
            format!("The overlay to {name} is cut"),
            "The peer replies over the underlay, but not over the overlay.",
        ),
    };
    let others = others_on(first);
    let text = if cause.is_some_and(|finding| finding.peers.is_empty()) {
        format!("{why}{since}")
    } else {
        format!("{detail}{others} {since}")
    };
    Some(new(Health::Bad, title, text))
}

/// How many other nodes reach a peer; empty without reports on it.
fn others_on(peer: &PeerView) -> String {
    let reach = peer.others.iter().filter(|other| other.state.passes());
    match (reach.count(), peer.others.len()) {
        (_, 0) => String::new(),
        (0, 1) => " Another node does not reach the peer either.".to_owned(),
        (0, all) => format!(" {all} other nodes do not reach the peer either."),
        (some, all) => format!(" {some} of {all} other nodes reach the peer."),
    }
}

/// The first unexplained finding of severity `broken` that names a given peer or no peer.
fn cause_of<'a>(node: &'a Node, cut: &[&PeerView]) -> Option<&'a Finding> {
    let names: BTreeSet<String> = cut.iter().map(|peer| peer.title()).collect();
    causes(node, Severity::Broken).find(|finding| {
        finding.peers.is_empty() || finding.peers.iter().any(|name| names.contains(name))
    })
}

fn causes(node: &Node, severity: Severity) -> impl Iterator<Item = &Finding> {
    let all = node.findings.iter().flatten();
    all.filter(move |finding| finding.explained_by.is_none() && finding.severity == severity)
}

fn with_impact(mesh: &Mesh, impact: Impact) -> impl Iterator<Item = &PeerView> {
    let all = mesh.peers.iter();
    all.filter(move |peer| peer.state.impact() == impact)
}

/// Counts nodes. One with two address families can have two peer entries.
fn nodes(peers: &[&PeerView]) -> usize {
    let titles: BTreeSet<String> = peers.iter().map(|peer| peer.title()).collect();
    titles.len()
}

/// About the first unexplained finding of the given severity.
fn found(node: &Node, severity: Severity, level: Health) -> Option<Sentence> {
    let finding = causes(node, severity).next()?;
    let age = finding.since.and_then(|then| since(then, node.at));
    let text = match age {
        Some(age) => format!("{} For {}.", ended(&finding.why), span(age)),
        None => ended(&finding.why),
    };
    Some(new(level, finding.what.clone(), text))
}

/// Adds a full stop if the text ends without punctuation.
fn ended(text: &str) -> String {
    match text.trim_end() {
        text if text.is_empty() || text.ends_with(['.', '!', '?']) => text.to_owned(),
        text => format!("{text}."),
    }
}

/// If some packets to or from a peer get lost, or if the path to it is slow.
fn impaired(node: &Node) -> Option<Sentence> {
    let mesh = node.mesh.as_ref()?;
    let all: Vec<&PeerView> = with_impact(mesh, Impact::Some).collect();
    let first = all.iter().max_by_key(|peer| peer.state)?;
    let alike: Vec<&PeerView> =
        all.iter().filter(|peer| peer.state == first.state).copied().collect();
    let whom = match nodes(&alike) {
        1 => first.title(),
        count => format!("{count} nodes"),
    };
    let age = span(Duration::from_millis(first.state_age_ms));
    let (title, text) = match first.state {
        State::SmallMtu => {
            let arrives =
                first.carries.map(|bytes| format!("Packets of up to {bytes} bytes arrive. "));
            (
                format!("Large packets to and from {whom} get lost"),
                format!(
                    "{}Pods send packets of up to {} bytes: connections open and then hang. For {age}.",
                    arrives.unwrap_or_default(),
                    first.mtu
                ),
            )
        }
        State::LosesSome => (
            format!("Some packets to and from {whom} get lost"),
            format!("{} of the last {} probes got no reply. For {age}.", first.lost, first.asked),
        ),
        _ => (
            format!("The path to {whom} is slow"),
            match first.rtt_us {
                Some(us) => format!("A round trip takes {}. For {age}.", milliseconds(us)),
                None => format!("For {age}."),
            },
        ),
    };
    Some(new(Health::Warn, title, text))
}

/// About the faults that other nodes report.
fn elsewhere(node: &Node) -> Option<Sentence> {
    let mesh = node.mesh.as_ref()?;
    let broken = mesh.rows.iter().find_map(|row| {
        let own = row.own.as_ref().filter(|own| own.broken > 0)?;
        // The most severe finding comes first. Directions follow below.
        let gravest = own.gravest.as_deref();
        let check = gravest.filter(|check| !is_about_path(check))?;
        Some((title(row), check.to_owned()))
    });
    if let Some((name, check)) = broken {
        return Some(new(
            Health::Bad,
            format!("{name} has a problem: {check}"),
            format!("Run flannelctl doctor on {name}."),
        ));
    }
    let directions = |impact: Impact| -> (usize, Option<(String, String)>) {
        let bad = |row: &Row| -> Vec<(String, String)> {
            let cells = row.peers.iter().filter(|cell| cell.state.impact() == impact);
            cells.map(|cell| (title(row), name_of(node, &cell.subnet))).collect()
        };
        let all: Vec<(String, String)> = mesh.rows.iter().flat_map(bad).collect();
        (all.len(), all.into_iter().next())
    };
    let (cut, first) = directions(Impact::All);
    if let Some((from, to)) = first {
        let title = match cut {
            1 => format!("{from} does not reach {to}"),
            cut => format!("{cut} directions between other nodes are cut"),
        };
        let text = format!("{} itself reaches all nodes.", node.node);
        return Some(new(Health::Bad, title, text));
    }
    let (some, first) = directions(Impact::Some);
    let (from, to) = first?;
    let title = match some {
        1 => format!("Packets from {from} to {to} get lost or are slow"),
        some => format!("{some} directions between other nodes lose packets or are slow"),
    };
    Some(new(Health::Warn, title, format!("{} itself reaches all nodes well.", node.node)))
}

fn title(row: &Row) -> String {
    row.name
        .as_deref()
        .filter(|name| !name.is_empty())
        .map_or_else(|| row.subnet.to_string(), str::to_owned)
}

fn name_of(node: &Node, subnet: &ipnet::IpNet) -> String {
    if node.network.subnets.contains(subnet) {
        return node.node.clone();
    }
    let peer = node.peers.iter().find(|peer| peer.subnets.contains(subnet));
    peer.map_or_else(|| subnet.to_string(), crate::Peer::title)
}

/// About a network without known faults.
fn well(node: &Node) -> Sentence {
    let name = &node.node;
    let Some(mesh) = &node.mesh else {
        let text =
            "This node sends no probes, so it does not know whether it reaches the other nodes.";
        return new(Health::Unknown, format!("{name} is ready"), text);
    };
    if node.peers.is_empty() {
        let text = "No other node has a lease.";
        return new(Health::Good, format!("{name} is ready"), text);
    }
    let unknown = mesh.peers.iter().filter(|peer| peer.state == State::Unknown).count();
    if unknown > 0 || mesh.peers.is_empty() {
        let text = format!(
            "{} of {} paths are not probed yet.",
            unknown.max(usize::from(mesh.peers.is_empty())),
            mesh.peers.len().max(node.peers.len())
        );
        return new(Health::Unknown, format!("{name} is ready"), text);
    }
    let all = node.peers.len() + 1;
    let reported = mesh.rows.iter().filter(|row| row.answered_age_ms.is_some());
    let title = match (reported.count() + 1 == all, all) {
        (_, 2) => "Both nodes reach each other".to_owned(),
        (true, all) => format!("All {all} nodes reach each other"),
        (false, 3) => format!("{name} reaches both other nodes"),
        (false, all) => format!("{name} reaches all {} other nodes", all - 1),
    };
    new(Health::Good, title, figures(node, mesh))
}

/// The round-trip time, packet size and other figures of a network without known faults.
fn figures(node: &Node, mesh: &Mesh) -> String {
    let mut parts = Vec::new();
    let mut rtts: Vec<u32> = mesh.peers.iter().filter_map(|peer| peer.rtt_us).collect();
    rtts.sort_unstable();
    if let Some(us) = rtts.get(rtts.len() / 2) {
        parts.push(format!("round trip {}", milliseconds(*us)));
    }
    let carried: BTreeSet<u16> = mesh.peers.iter().filter_map(|peer| peer.carries).collect();
    if let (Some(bytes), 1) = (carried.first(), carried.len()) {
        parts.push(format!("{bytes} bytes everywhere"));
    }
    let oldest = mesh.peers.iter().filter_map(|peer| peer.ages.asked_age_ms).max();
    if let Some(ms) = oldest {
        let seconds = Duration::from_secs(ms.div_ceil(1000));
        parts.push(format!("probed within {}", span(seconds)));
    }
    let by_ping = mesh.peers.iter().filter(|peer| peer.ping_only).count();
    if by_ping > 0 {
        parts.push(format!("{by_ping} reply only to ping"));
    }
    match causes(node, Severity::Risk).count() {
        0 => {}
        1 => parts.push("1 risk".to_owned()),
        risks => parts.push(format!("{risks} risks")),
    }
    parts.join(" · ")
}

#[expect(clippy::cast_precision_loss, reason = "the text shows rounded times")]
fn milliseconds(us: u32) -> String {
    let ms = us as f32 / 1000.0;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

/// True if a check reports faults of paths to peers. The status page shows these in the cells of its table.
pub(crate) fn is_about_path(check: &str) -> bool {
    doctor::is_about_peers(check) || check == "mtu"
}

#[cfg(test)]
mod tests;
