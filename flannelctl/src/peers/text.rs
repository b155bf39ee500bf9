//! Renders the text of `flannelctl peers` as a pure function of the document.

use std::time::Duration;

use node_api::{Peers, Probed};
use probing::view::{self, Row};
use types::reachability::{Impact, State};

use crate::columns::{Cell, fitted, plain};
use node_api::facts::span;
use terminal::screen::{Screen, Style};

const HEADINGS: [&str; 9] =
    ["NODE", "SUBNET", "ADDRESS", "STATE", "RTT", "LOST", "CARRIES", "HEARS US", "ASKED"];
/// Columns that a narrow terminal does not show, the first one first. The node and the state of the path to
/// it always stay.
const SPARE: [&str; 7] = ["ASKED", "HEARS US", "CARRIES", "ADDRESS", "LOST", "RTT", "SUBNET"];
/// The columns that `-o wide` adds.
const WIDE_HEADINGS: [&str; 5] = ["MTU", "HEARD", "UNDERLAY", "CLOCK", "OTHERS"];
const OPINION_HEADINGS: [&str; 7] = ["NODE", "SUBNET", "READY", "FINDINGS", "PEERS", "RTT", "SAID"];
const OPINION_SPARE: [&str; 4] = ["RTT", "SAID", "SUBNET", "PEERS"];
const NOTHING: &str = "-";

/// `all` adds the reports of other nodes, and `wide` adds all columns.
pub(super) fn text(peers: &Peers, all: bool, wide: bool, screen: Screen) -> String {
    if peers.peers.is_empty() {
        return "no other node has a lease that is active on this node".to_owned();
    }
    let mut out = if peers.probed {
        let mut sorted: Vec<&Probed> = peers.peers.iter().collect();
        sorted.sort_by_key(|probed| std::cmp::Reverse(gravest(probed)));
        let rows: Vec<Vec<Cell>> =
            sorted.into_iter().flat_map(|probed| verdicts(probed, wide)).collect();
        let (more, spare): (&[&str], &[&str]) =
            if wide { (&WIDE_HEADINGS, &[]) } else { (&[], &SPARE) };
        let headings = [&HEADINGS, more].concat();
        let table = fitted(&headings, spare, &rows, screen);
        format!("{table}\n{}", summary(peers))
    } else {
        let rows: Vec<Vec<Cell>> =
            peers.peers.iter().map(|probed| unprobed(probed).to_vec()).collect();
        format!(
            "{}\n{} peers, not probed",
            fitted(
                &["NODE", "SUBNET", "ADDRESS"],
                if wide { &[] } else { &["ADDRESS"] },
                &rows,
                screen
            ),
            peers.peers.len()
        )
    };
    if all {
        let rows: Vec<Vec<Cell>> = peers.rows.iter().map(opinion).collect();
        let rows = if rows.is_empty() {
            "no other node has sent a report".to_owned()
        } else {
            fitted(&OPINION_HEADINGS, if wide { &[] } else { &OPINION_SPARE }, &rows, screen)
        };
        let missing = match missing(peers) {
            0 => String::new(),
            some => format!(
                "\n{some} of {} nodes that answer probes have sent no report",
                wanted(peers)
            ),
        };
        out = format!("{out}\n\n{rows}{missing}");
    }
    out
}

/// The number of nodes that reply to probes and can therefore send reports.
pub(super) fn wanted(peers: &Peers) -> usize {
    let can_say = |probed: &&Probed| {
        probed
            .verdicts
            .iter()
            .any(|verdict| verdict.id.is_some() && !verdict.ping_only && verdict.state.passes())
    };
    peers.peers.iter().filter(can_say).count()
}

/// The number of nodes that reply to probes but have not reported.
pub(super) fn missing(peers: &Peers) -> usize {
    let said = peers.rows.iter().filter(|row| is_fresh(row, peers)).count();
    wanted(peers).saturating_sub(said)
}

/// Whether a node's report is recent, not left over from an earlier request. While clients want such reports,
/// the daemon asks every node every five seconds, at a hundred nodes per second.
pub(crate) fn is_fresh(row: &Row, peers: &Peers) -> bool {
    let nodes = u64::try_from(peers.peers.len()).unwrap_or(u64::MAX);
    let most = nodes.saturating_mul(20).saturating_add(12_000);
    row.answered_age_ms.is_some_and(|age| age <= most)
}

fn unprobed(probed: &Probed) -> [Cell; 3] {
    let joined = |items: Vec<String>| plain(items.join(" "));
    let subnets = probed.peer.subnets.iter().map(ToString::to_string).collect();
    let addresses = probed.peer.addresses.iter().map(ToString::to_string).collect();
    [plain(probed.peer.title()), joined(subnets), joined(addresses)]
}

/// The worst impact on a peer in any address family. Affected peers come first; otherwise the order of
/// subnets stays.
fn gravest(probed: &Probed) -> Impact {
    probed.verdicts.iter().map(|verdict| verdict.state.impact()).max().unwrap_or(Impact::Unknown)
}

/// A row for each address family of a peer.
fn verdicts(probed: &Probed, wide: bool) -> Vec<Vec<Cell>> {
    if probed.verdicts.is_empty() {
        return vec![unprobed(probed).into_iter().chain([faint("not probed")]).collect()];
    }
    probed.verdicts.iter().map(|verdict| row(&probed.peer.title(), verdict, wide)).collect()
}

fn row(name: &str, peer: &view::PeerView, wide: bool) -> Vec<Cell> {
    let mut cells = vec![
        plain(name),
        plain(peer.subnet.to_string()),
        plain(peer.address.to_string()),
        state(peer.state),
        plain(peer.rtt_us.map_or_else(|| NOTHING.to_owned(), rtt)),
        plain(format!("{}/{}", peer.lost, peer.asked)),
        plain(peer.carries.map_or_else(|| NOTHING.to_owned(), |bytes| bytes.to_string())),
        plain(ago(peer.ages.hears_us_age_ms)),
        plain(ago(peer.ages.asked_age_ms)),
    ];
    if wide {
        cells.extend([
            plain(peer.mtu.to_string()),
            plain(ago(peer.ages.heard_age_ms)),
            plain(ago(peer.ages.underlay_age_ms)),
            plain(
                peer.clock_offset_ms.map_or_else(|| NOTHING.to_owned(), |ms| format!("{ms:+} ms")),
            ),
            plain(others(peer)),
        ]);
    }
    cells.push(faint(&note(peer)));
    cells
}

/// How many of the reporting nodes reach the peer.
fn others(peer: &view::PeerView) -> String {
    let reach = peer.others.iter().filter(|other| other.state.passes());
    match peer.others.len() {
        0 => NOTHING.to_owned(),
        all => format!("{} of {all} reach it", reach.count()),
    }
}

/// How long a peer's problem has lasted, and details without a column.
fn note(peer: &view::PeerView) -> String {
    let mut parts = Vec::new();
    if peer.state.impact() > Impact::None {
        parts.push(format!("for {}", span(Duration::from_millis(peer.state_age_ms))));
    }
    if peer.inferred {
        parts.push("inferred from probed peers".to_owned());
    }
    if let Some(other) = &peer.answered_by {
        parts.push(format!("{other} replies in place of the peer"));
    }
    if peer.ping_only {
        let why = match (&peer.id, peer.refuses) {
            (None, _) => "Go flannel",
            (_, true) => "the peer's host refuses the probes",
            (_, false) => "the probe port is filtered",
        };
        parts.push(format!("ping only: {why}"));
    }
    if peer.state == State::SmallMtu {
        parts.push(format!("should carry {}", peer.mtu));
    }
    parts.join("; ")
}

fn state(state: State) -> Cell {
    let style = match state.impact() {
        Impact::None => None,
        Impact::Unknown => Some(Style::Faint),
        Impact::Some | Impact::All => Some(Style::Bad),
    };
    (state.name().to_owned(), style)
}

/// The report of another node about itself and its peers.
fn opinion(row: &Row) -> Vec<Cell> {
    let name = row.name.as_deref().filter(|name| !name.is_empty()).unwrap_or(NOTHING);
    let own = row.own.as_ref();
    let ready = own.map_or(faint("not known"), |own| {
        if own.ready { plain("ready") } else { ("not ready".to_owned(), Some(Style::Bad)) }
    });
    let findings = own.map_or_else(|| NOTHING.to_owned(), findings);
    let all: u32 = row.counts.values().sum();
    let well: u32 = row
        .counts
        .iter()
        .filter(|(state, _)| state.impact() == Impact::None)
        .map(|(_, count)| count)
        .sum();
    let peers =
        if row.own.is_some() { format!("{well} of {all} well") } else { NOTHING.to_owned() };
    vec![
        plain(name),
        plain(row.subnet.to_string()),
        ready,
        plain(findings),
        plain(peers),
        plain(row.rtt_us.map_or_else(|| NOTHING.to_owned(), rtt)),
        plain(ago(row.answered_age_ms)),
    ]
}

fn findings(own: &view::Own) -> String {
    let kinds = [(own.broken, "broken"), (own.degraded, "degraded"), (own.risks, "risk")];
    let counts: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} {kind}"))
        .collect();
    let gravest = own.gravest.as_ref().map(|check| format!(": {check}")).unwrap_or_default();
    if counts.is_empty() { "none".to_owned() } else { format!("{}{gravest}", counts.join(", ")) }
}

fn summary(peers: &Peers) -> String {
    let all: Vec<&view::PeerView> = peers.peers.iter().flat_map(|peer| &peer.verdicts).collect();
    let count = |impact: Impact| all.iter().filter(|peer| peer.state.impact() == impact).count();
    let unknown = match count(Impact::Unknown) {
        0 => String::new(),
        number => format!(", {number} unknown"),
    };
    format!("{} of {} well{unknown}", count(Impact::None), all.len())
}

fn rtt(micros: u32) -> String {
    format!("{:.2} ms", f64::from(micros) / 1000.0)
}

fn ago(age_ms: Option<u64>) -> String {
    age_ms.map_or_else(
        || NOTHING.to_owned(),
        |age| format!("{} ago", span(Duration::from_millis(age))),
    )
}

fn faint(text: &str) -> Cell {
    (text.to_owned(), Some(Style::Faint))
}

#[cfg(test)]
mod tests;
