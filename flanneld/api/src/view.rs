//! The document behind the status page, `GET /api/v1/view`: a compact view of the cluster from one node.
//!
//! [`View::of`] computes it from the node's document.

use crate::facts::facts;
pub use crate::sentence::{Health, Sentence};
use crate::sentence::{is_about_path, sentence};
use crate::{Node, Peer};
use doctor::finding::{Evidence, Severity};
use ipnet::IpNet;
use jiff::Timestamp;
use probing::view::{Mesh, Own, PeerView, Row};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use types::reachability::State;

/// Schema of a [`View`].
pub const VIEW_SCHEMA: &str = "flannel.view/1";
/// Schema of [`RowDetails`].
pub const ROW_SCHEMA: &str = "flannel.view.row/1";
/// Maximum size of a cluster, in nodes, in which a report has a cell for every known peer. For more nodes, the status
/// page draws a map, which needs only the states of the paths.
pub const TABLE_NODES: usize = 24;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Always [`VIEW_SCHEMA`].
    pub schema: String,
    /// By the node's clock.
    pub at: Timestamp,
    /// The node that serves the document.
    pub node: String,
    pub version: String,
    /// Empty until the networks are known.
    pub networks: Vec<IpNet>,
    pub backend: Option<String>,
    pub sentence: Sentence,
    /// Of this node; the most severe first. No other finding explains them.
    pub findings: Vec<FindingView>,
    /// Checks of the doctor that could not run.
    pub unknown_checks: Vec<doctor::finding::Unknown>,
    /// Absent if the node sends no probes.
    pub mesh: Option<MeshView>,
    /// Of the last five minutes.
    pub charts: Charts,
    /// About this node, each with its name and its text.
    pub facts: Vec<(String, String)>,
    /// The newest first.
    pub events: Vec<LogEvent>,
}

/// A finding of the doctor that no other finding explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingView {
    pub check: String,
    pub severity: Severity,
    pub what: String,
    /// The cause or the consequence of the problem.
    pub why: String,
    /// Time of the first report that contained the finding.
    pub since: Option<Timestamp>,
    pub evidence: Vec<Evidence>,
    /// Shell commands that fix the problem, then comments about the commands.
    pub commands: Vec<String>,
    /// The machine on which to run the commands.
    pub on: String,
    /// Number of findings that this finding explains.
    pub explains: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshView {
    /// Names of the path states. A cell contains the index of its state in this list.
    pub states: Vec<String>,
    /// Includes this node; in the order of their subnets.
    pub nodes: Vec<NodeView>,
    /// Index of this node in `nodes`.
    #[serde(rename = "self")]
    pub own: usize,
    /// Interval between probes of the same peer, in milliseconds.
    pub cycle_ms: u64,
    /// Number of nodes whose reports are known, including this node.
    pub reported: usize,
    /// Age of the oldest report of another node, in milliseconds; absent if no other node has reported.
    pub oldest_report_ms: Option<u64>,
    /// The reports of nodes on their peers. A node without a report in the list has not reported.
    pub rows: Vec<RowView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// The address if the node publishes no name.
    pub name: String,
    pub subnet: String,
    pub address: String,
    /// Absent if unknown.
    pub ready: Option<bool>,
    /// Checks that reported the node's findings, the most severe first.
    pub checks: Vec<String>,
    /// Findings of severity `broken`.
    pub broken: u16,
    /// Findings of severity `degraded`.
    pub degraded: u16,
    /// Findings of severity `risk`.
    pub risks: u16,
    /// `flannel-rs`, or `go` if the node publishes no id. Go flannel publishes none.
    pub kind: String,
}

/// The report of a node on its peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowView {
    /// Index of the node that sent the report.
    pub from: usize,
    /// In milliseconds.
    pub age_ms: u64,
    /// State of the peers without a cell; absent if unknown.
    pub rest: Option<u8>,
    /// Each cell contains the peer's index, the state of the path, and the number of unanswered probes among the last
    /// 16. The round-trip time in microseconds, the last probe's age in milliseconds, and 1 if the peer replies only
    /// to ping, follow.
    pub cells: Vec<CellView>,
}

/// See [`RowView::cells`].
pub type CellView = (usize, u8, u8, Option<u32>, Option<u64>, u8);

/// Time series of the last five minutes, the oldest value first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Charts {
    /// Time between two values of a series, in milliseconds.
    pub step_ms: u64,
    /// By the name of the time series; `None` for an unknown value.
    pub series: BTreeMap<String, Vec<Option<f64>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEvent {
    /// Of the last occurrence.
    pub at: Timestamp,
    pub level: Level,
    pub text: String,
    /// As `name=value`.
    pub fields: String,
    /// Number of consecutive occurrences.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// An event of normal operation.
    Info,
    /// A problem.
    Warn,
    /// The reason why the daemon ends.
    Error,
}

/// All details of one node's report on its peers: `GET /api/v1/view?row=SUBNET`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowDetails {
    /// Always [`ROW_SCHEMA`].
    pub schema: String,
    /// The node that sent the report.
    pub from: IpNet,
    /// Age of the report in milliseconds; absent for this node itself.
    pub age_ms: Option<u64>,
    /// A report without room for all peers contains only those with the worst states.
    pub cells: Vec<CellDetails>,
}

/// What a node's report says about a peer. Only this node's own report has the fields after
/// [`CellDetails::asked_age_ms`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellDetails {
    pub to: String,
    pub state: State,
    /// Whether the peer replies only to ping.
    pub ping_only: bool,
    /// In microseconds.
    pub rtt_us: Option<u32>,
    /// Recent probes without a reply.
    pub lost: u8,
    /// Recent probes of the peer, at most 16; absent in the reports of other nodes.
    pub asked: Option<u8>,
    /// Of the last probe, in milliseconds.
    pub asked_age_ms: Option<u64>,
    /// Since the path's current state began, in milliseconds.
    pub state_age_ms: Option<u64>,
    /// Size of the largest packet that reaches the peer, in bytes.
    pub carries: Option<u16>,
    /// Size of the largest packet that should reach the peer, in bytes.
    pub mtu: Option<u16>,
    /// Of this node's last probe that the peer received, in milliseconds.
    pub hears_us_age_ms: Option<u64>,
    /// Of the peer's last reply over the underlay, in milliseconds.
    pub underlay_age_ms: Option<u64>,
}

impl View {
    /// `node` must contain the reports of other nodes.
    pub fn of(node: &Node, charts: Charts, events: Vec<LogEvent>) -> Self {
        Self {
            schema: VIEW_SCHEMA.to_owned(),
            at: node.at,
            node: node.node.clone(),
            version: node.version.clone(),
            networks: node.network.networks.clone(),
            backend: node.network.backend.clone(),
            sentence: sentence(node),
            findings: problems(node),
            unknown_checks: node.unknown.clone(),
            mesh: node.mesh.as_ref().map(|mesh| MeshView::of(node, mesh)),
            charts,
            facts: facts(node).into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
            events,
        }
    }
}

/// The findings that no other finding explains, each with the number of those that it explains.
fn problems(node: &Node) -> Vec<FindingView> {
    let findings = node.findings.as_deref().unwrap_or_default();
    let causes = findings.iter().filter(|finding| finding.explained_by.is_none());
    causes
        .map(|finding| FindingView {
            check: finding.check.clone(),
            severity: finding.severity,
            what: finding.what.clone(),
            why: finding.why.clone(),
            since: finding.since,
            evidence: finding.evidence.clone(),
            commands: finding.remedy.commands.clone(),
            on: finding.remedy.on.clone(),
            explains: findings
                .iter()
                .filter(|other| other.explained_by.as_ref() == Some(&finding.check))
                .count(),
        })
        .collect()
}

/// The index of each node by its subnet.
struct Places {
    by_subnet: HashMap<IpNet, usize>,
    own: usize,
    count: usize,
}

impl MeshView {
    fn of(node: &Node, mesh: &Mesh) -> Self {
        let (nodes, places) = nodes(node, mesh);
        let families = node.network.subnets.len().max(1);
        let own = own_row(&mesh.peers, &places);
        let others = mesh.rows.iter().filter_map(|row| {
            let from = *places.by_subnet.get(&row.subnet)?;
            (from != places.own).then(|| other_row(row, from, &places, families))?
        });
        let rows: Vec<RowView> = std::iter::once(own).chain(others).collect();
        Self {
            states: State::ALL.map(|state| state.name().to_owned()).to_vec(),
            nodes,
            own: places.own,
            cycle_ms: mesh.cycle_ms,
            reported: rows.len(),
            oldest_report_ms: rows.iter().skip(1).map(|row| row.age_ms).max(),
            rows,
        }
    }
}

/// In the order of their subnets.
fn nodes(node: &Node, mesh: &Mesh) -> (Vec<NodeView>, Places) {
    let own = Peer {
        node: Some(node.node.clone()),
        subnets: node.network.subnets.clone(),
        addresses: node
            .network
            .underlay
            .as_ref()
            .map(|underlay| underlay.public.clone())
            .unwrap_or_default(),
    };
    let mut all: Vec<(&Peer, bool)> = node.peers.iter().map(|peer| (peer, false)).collect();
    all.push((&own, true));
    all.sort_by_key(|(peer, _)| peer.subnets.first().copied());
    let by_subnet: HashMap<IpNet, usize> = all
        .iter()
        .enumerate()
        .flat_map(|(index, (peer, _))| peer.subnets.iter().map(move |subnet| (*subnet, index)))
        .collect();
    let places = Places {
        own: all.iter().position(|(_, own)| *own).unwrap_or(0),
        count: all.len(),
        by_subnet,
    };
    let reports: HashMap<usize, &Own> = mesh
        .rows
        .iter()
        .filter_map(|row| Some((*places.by_subnet.get(&row.subnet)?, row.own.as_ref()?)))
        .collect();
    let with_id: HashMap<usize, bool> = mesh
        .peers
        .iter()
        .filter_map(|peer| Some((*places.by_subnet.get(&peer.subnet)?, peer.id.is_some())))
        .collect();
    let nodes = all.iter().enumerate().map(|(index, (peer, is_own))| {
        let mut view = NodeView {
            name: peer.title(),
            subnet: first(&peer.subnets),
            address: first(&peer.addresses),
            kind: if *is_own || with_id.get(&index) == Some(&true) {
                "flannel-rs".to_owned()
            } else {
                "go".to_owned()
            },
            ..NodeView::default()
        };
        if *is_own {
            note_own(&mut view, node);
        } else if let Some(own) = reports.get(&index) {
            view.ready = Some(own.ready);
            view.checks = own_checks(own).map(str::to_owned).collect();
            // The counts include the findings about its peers.
            if !view.checks.is_empty() {
                (view.broken, view.degraded, view.risks) = (own.broken, own.degraded, own.risks);
            }
        }
        view
    });
    (nodes.collect(), places)
}

fn first<T: ToString>(all: &[T]) -> String {
    all.first().map(ToString::to_string).unwrap_or_default()
}

/// The checks with findings about the node itself, not about its peers. Versions before [`Own::checks`] report only
/// one check.
pub(crate) fn own_checks(own: &Own) -> impl Iterator<Item = &str> {
    let gravest = own.gravest.iter().filter(|_| own.checks.is_empty());
    let all = own.checks.iter().chain(gravest).map(String::as_str);
    all.filter(|check| !is_about_path(check))
}

/// Adds this node's readiness and findings to the node's own entry.
fn note_own(view: &mut NodeView, node: &Node) {
    view.ready = Some(node.readiness.ready);
    let own = problems(node).into_iter().filter(|problem| !is_about_path(&problem.check));
    for problem in own {
        let count = match problem.severity {
            Severity::Broken => &mut view.broken,
            Severity::Degraded => &mut view.degraded,
            Severity::Risk => &mut view.risks,
        };
        *count = count.saturating_add(1);
        view.checks.push(problem.check);
    }
}

/// If the peer already has a cell for another address family, keeps the one with the worse state.
fn add(cells: &mut BTreeMap<usize, CellView>, cell: CellView) {
    let rank = |cell: &CellView| {
        let state = State::of_number(cell.1);
        (state.impact(), state)
    };
    let known = cells.entry(cell.0).or_insert(cell);
    if rank(&cell) > rank(known) {
        *known = cell;
    }
}

fn own_row(peers: &[PeerView], places: &Places) -> RowView {
    let mut cells = BTreeMap::new();
    for peer in peers {
        let Some(to) = places.by_subnet.get(&peer.subnet) else {
            continue;
        };
        let cell = (
            *to,
            peer.state.number(),
            peer.lost,
            peer.rtt_us,
            peer.ages.asked_age_ms,
            u8::from(peer.ping_only),
        );
        add(&mut cells, cell);
    }
    // A node without a verdict is not probed yet.
    let is_complete = cells.len() + 1 == places.count;
    RowView {
        from: places.own,
        age_ms: 0,
        rest: is_complete.then(|| State::Well.number()),
        cells: cells.into_values().collect(),
    }
    .without_rest(places)
}

/// `None` if the node has not reported.
fn other_row(row: &Row, from: usize, places: &Places, families: usize) -> Option<RowView> {
    let age_ms = row.answered_age_ms?;
    let mut cells = BTreeMap::new();
    let mut left = row.counts.clone();
    for cell in &row.peers {
        if let Some(count) = left.get_mut(&cell.state) {
            *count = count.saturating_sub(1);
        }
        if let Some(to) = places.by_subnet.get(&cell.subnet) {
            let state = cell.state.number();
            let ping_only = u8::from(cell.ping_only);
            let view = (*to, state, cell.lost, cell.rtt_us, cell.asked_age_ms, ping_only);
            add(&mut cells, view);
        }
    }
    // The report lists the worst peers and counts all. If the others share a state, it is known without a cell.
    let mut others = left.iter().filter(|(_, count)| **count > 0);
    let all: u32 = row.counts.values().sum();
    let covers_all = usize::try_from(all).is_ok_and(|all| all >= (places.count - 1) * families);
    let rest = match (others.next(), others.next()) {
        (None, _) => Some(State::Well),
        (Some((state, _)), None) => Some(*state),
        (Some(_), Some(_)) => None,
    };
    let row = RowView {
        from,
        age_ms,
        rest: rest.filter(|_| covers_all).map(State::number),
        cells: cells.into_values().collect(),
    };
    Some(row.without_rest(places))
}

impl RowView {
    /// Omits the cells whose state is `rest`, unless the status page shows a table.
    fn without_rest(mut self, places: &Places) -> Self {
        if places.count > TABLE_NODES {
            self.cells.retain(|cell| Some(cell.1) != self.rest);
        }
        self
    }
}

impl RowDetails {
    /// The details of the report of the node with the given subnet; `None` if no node has it.
    pub fn of(node: &Node, subnet: IpNet) -> Option<Self> {
        let mesh = node.mesh.as_ref()?;
        let row =
            |age_ms, cells| Self { schema: ROW_SCHEMA.to_owned(), from: subnet, age_ms, cells };
        if node.network.subnets.contains(&subnet) {
            let cells = mesh.peers.iter().map(|peer| CellDetails {
                to: peer.subnet.to_string(),
                state: peer.state,
                ping_only: peer.ping_only,
                rtt_us: peer.rtt_us,
                lost: peer.lost,
                asked: Some(peer.asked),
                asked_age_ms: peer.ages.asked_age_ms,
                state_age_ms: Some(peer.state_age_ms),
                carries: peer.carries,
                mtu: Some(peer.mtu),
                hears_us_age_ms: peer.ages.hears_us_age_ms,
                underlay_age_ms: peer.ages.underlay_age_ms,
            });
            return Some(row(None, cells.collect()));
        }
        let peer = node.peers.iter().find(|peer| peer.subnets.contains(&subnet))?;
        // The report may have been requested in the other family.
        let found = mesh.rows.iter().find(|row| peer.subnets.contains(&row.subnet));
        let Some(found) = found else {
            return Some(row(None, Vec::new()));
        };
        let cells = found.peers.iter().map(|cell| CellDetails {
            to: cell.subnet.to_string(),
            state: cell.state,
            ping_only: cell.ping_only,
            rtt_us: cell.rtt_us,
            lost: cell.lost,
            asked_age_ms: cell.asked_age_ms,
            ..CellDetails::default()
        });
        Some(row(found.answered_age_ms, cells.collect()))
    }
}

#[cfg(test)]
pub(crate) mod tests;
