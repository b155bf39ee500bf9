//! Renders the text of `flannelctl status` as a pure function of the status.

use doctor::finding::DaemonState;
use doctor::{Finding, Severity};
use jiff::Timestamp;
use node_api::{FailedPeer, FileState, Node, PodPath, Status, Wireguard};
use probing::pods::{Lost, PodState};
use std::fmt::Display;
use std::time::Duration;
use types::printable;
use types::reachability::Impact;

use crate::leases::span;
use terminal::screen::{Screen, Style};

/// Columns before the text of a detail.
const INDENT: usize = 12;
/// Column of the version in the first line.
const WIDTH: usize = 66;
const DOCTOR: &str = "run flannelctl doctor for the remedy";

/// Whether an operator has to act now.
pub(super) fn is_broken(status: &Status) -> bool {
    status.node.as_ref().is_none_or(|node| {
        !node.readiness.ready
            || node.readiness.silent.is_some()
            || causes(node).any(|finding| finding.severity == Severity::Broken)
            || !cut(node).is_empty()
    })
}

/// Returns the unexplained findings that break or slow down traffic.
fn broken(node: &Node) -> Vec<&Finding> {
    causes(node)
        .filter(|finding| finding.severity != Severity::Risk)
        .collect()
}

fn causes(node: &Node) -> impl Iterator<Item = &Finding> {
    node.findings
        .iter()
        .flatten()
        .filter(|finding| finding.explained_by.is_none())
}

/// Returns the peers that packets do not reach; none as soon as the doctor's findings name them.
fn cut(node: &Node) -> Vec<&probing::view::PeerView> {
    let all = node.mesh.iter().flat_map(|mesh| &mesh.peers);
    all.filter(|peer| node.findings.is_none() && peer.state.impact() == Impact::All)
        .collect()
}

pub(super) fn text(status: &Status, now: Timestamp, screen: Screen) -> String {
    match &status.node {
        Some(node) => running(node, screen),
        None => silent(status, now, screen),
    }
}

fn silent(status: &Status, now: Timestamp, screen: Screen) -> String {
    let host = printable::value(&status.host);
    if status.daemon == DaemonState::Hanging {
        let trouble = status.trouble.as_deref().unwrap_or_default();
        return [
            sentence(false, &format!("flanneld hangs on {host}"), screen),
            format!("    {}", printable::line(trouble)),
            format!("  {DOCTOR}"),
        ]
        .join("\n");
    }
    let Some(report) = &status.exit_report else {
        let first = sentence(
            false,
            &format!("flanneld is not running on {host}; it left no exit report"),
            screen,
        );
        return format!(
            "{first}\n    {}\n  {DOCTOR}",
            printable::line(status.trouble.as_deref().unwrap_or_default())
        );
    };
    let ago = match since(report.at, now) {
        Some(ago) => format!("{} ago", span(ago)),
        // The clock was set back after the report.
        None => format!("at {}", report.at),
    };
    let first = sentence(
        false,
        &format!(
            "flanneld is not running on {host}; it ended {ago} with exit code {}:",
            report.code
        ),
        screen,
    );
    let reasons = report
        .text
        .lines()
        .map(|line| format!("    {}", printable::line(line)));
    std::iter::once(first)
        .chain(reasons)
        .chain([format!("  {DOCTOR}")])
        .collect::<Vec<_>>()
        .join("\n")
}

/// Renders the first line.
fn sentence(well: bool, text: &str, screen: Screen) -> String {
    match (screen.has_signs(), well) {
        (true, true) => format!(
            "{} {}",
            screen.styled(Style::Good, "✓"),
            screen.styled(Style::Strong, text)
        ),
        (true, false) => format!(
            "{} {}",
            screen.styled(Style::Bad, "✗"),
            screen.styled(Style::Strong, text)
        ),
        (false, _) => text.to_owned(),
    }
}

fn running(node: &Node, screen: Screen) -> String {
    let is_well = node.readiness.ready
        && node.readiness.silent.is_none()
        && broken(node).is_empty()
        && cut(node).is_empty();
    let mut out = vec![headline(node, is_well, screen)];
    // Problems come first, because some readers stop there.
    out.extend(problems(node, screen));
    if !is_well {
        out.push(format!("  {DOCTOR}"));
    }
    if out.len() > 1 {
        out.push(String::new());
    }
    out.extend(details(node, screen));
    out.join("\n")
}

/// The state of the node, with the version on the right.
fn headline(node: &Node, is_well: bool, screen: Screen) -> String {
    let name = printable::value(&node.node);
    let count = |severity| {
        broken(node)
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    // The headline counts degraded findings only if nothing is broken.
    let (number, word) = match count(Severity::Broken) + cut(node).len() {
        0 => (count(Severity::Degraded), Severity::Degraded),
        number => (number, Severity::Broken),
    };
    let state = match (
        node.readiness.silent.is_some(),
        node.readiness.ready,
        number,
    ) {
        (true, ..) => format!("flanneld hangs on {name}"),
        (_, false, _) => format!("{name} is not ready"),
        (_, true, 0) => format!("{name} is ready"),
        (_, true, 1) => format!("{name} is ready, and one thing is {word}"),
        (_, true, number) => format!("{name} is ready, and {number} things are {word}"),
    };
    let used = state.chars().count() + if screen.has_signs() { 2 } else { 0 };
    let version = format!(
        "flanneld {}, up {}",
        printable::value(&node.version),
        span(Duration::from_secs(node.uptime_seconds))
    );
    let gap = WIDTH.saturating_sub(used).max(2);
    let is_narrow = |width| used + gap + version.chars().count() > width;
    format!(
        "{}{}{}",
        sentence(is_well, &state, screen),
        if screen.width().is_some_and(is_narrow) {
            "\n  ".to_owned()
        } else {
            " ".repeat(gap)
        },
        screen.styled(Style::Faint, version)
    )
}

/// Returns a line for each problem: findings, peers that are cut off, risks, and reasons why the node is not ready.
fn problems(node: &Node, screen: Screen) -> Vec<String> {
    let problem = |severity: Severity, text: &str| {
        let text = screen.wrap(&printable::line(text), INDENT);
        let text = text.join("\n    ");
        match (screen.has_signs(), severity) {
            (true, Severity::Broken) => format!("  {} {text}", screen.styled(Style::Bad, "✗")),
            (true, Severity::Degraded) => format!("  {} {text}", screen.styled(Style::Bad, "!")),
            (true, Severity::Risk) => format!("  {} {text}", screen.styled(Style::Faint, "!")),
            (false, severity) => format!("  {severity}: {text}"),
        }
    };
    let findings = broken(node)
        .into_iter()
        .map(|finding| problem(finding.severity, &finding_text(finding, node.at)));
    let cut = cut(node)
        .into_iter()
        .map(|peer| problem(Severity::Broken, &peer_text(peer)));
    let risks = causes(node)
        .filter(|finding| finding.severity == Severity::Risk)
        .map(|finding| problem(finding.severity, &finding_text(finding, node.at)));
    let hangs = node
        .readiness
        .silent
        .iter()
        .map(|text| line("hangs", text, screen));
    let reasons = node.readiness.reasons.iter().map(|reason| {
        let text = format!("{}: {}", reason.condition, reason.text);
        line("not ready", &text, screen)
    });
    findings
        .chain(cut)
        .chain(risks)
        .chain(hangs)
        .chain(reasons)
        .collect()
}

/// Returns a line for each part of the node's state.
fn details(node: &Node, screen: Screen) -> Vec<String> {
    let unused = (!node.unused.is_empty()).then(|| {
        format!(
            "{} of the leases in the store: flannelctl leases shows why",
            node.unused.len()
        )
    });
    let lines = [
        ("subnet", subnet(node)),
        ("address", address(node)),
        ("pods", pods(node)),
        ("store", store(node)),
        ("kernel", kernel(node)),
        ("failed", failed_peers(node)),
        ("silent", silent_peers(node)),
        ("rules", rules(node)),
        ("peers", Some(peers(node))),
        ("probes", pod_paths(node)),
        ("unused", unused),
        ("api", node.page.as_ref().map(|url| api(url, &node.node))),
    ];
    let notices = node
        .readiness
        .notices
        .iter()
        .map(|notice| ("note", Some(format!("{}: {}", notice.name, notice.text))));
    lines
        .into_iter()
        .chain(notices)
        .filter_map(|(name, text)| Some(line(name, &text?, screen)))
        .collect()
}

fn line(name: &str, text: &str, screen: Screen) -> String {
    let lines = screen.wrap(&printable::line(text), INDENT);
    format!(
        "  {} {}",
        screen.styled(Style::Faint, format!("{name:<9}")),
        lines.join(&format!("\n{:INDENT$}", ""))
    )
}

fn peer_text(peer: &probing::view::PeerView) -> String {
    format!(
        "{} ({}) has been {} for {}",
        peer.title(),
        peer.address,
        peer.state,
        span(Duration::from_millis(peer.state_age_ms))
    )
}

fn finding_text(finding: &Finding, now: Timestamp) -> String {
    let since = finding
        .since
        .and_then(|then| since(then, now))
        .map(|time| format!(" (for {})", span(time)));
    format!("{}{}", finding.what, since.unwrap_or_default())
}

fn subnet(node: &Node) -> Option<String> {
    if node.network.subnets.is_empty() {
        return None;
    }
    let mut text = joined(&node.network.subnets);
    if let Some(lease) = &node.network.lease {
        match lease.until {
            Some(until) => match since(node.at, until) {
                Some(left) => text.push_str(&format!(", leased for {} more", span(left))),
                None => text.push_str(", whose lease has ended"),
            },
            None => text.push_str(", which does not expire"),
        }
        if let Some(renewed) = lease.renewed.and_then(|renewed| since(renewed, node.at)) {
            text.push_str(&format!(", renewed {} ago", span(renewed)));
        }
        if let Some(trouble) = &lease.trouble {
            text.push_str(&format!("; {trouble}"));
        }
    }
    Some(text)
}

fn address(node: &Node) -> Option<String> {
    let underlay = node.network.underlay.as_ref()?;
    let public = if underlay.public == underlay.addresses {
        String::new()
    } else {
        format!(", published as {}", joined(&underlay.public))
    };
    Some(format!(
        "{} on {} (MTU {}){public}: {}",
        joined(&underlay.addresses),
        underlay.interface,
        underlay.mtu,
        underlay.why
    ))
}

fn pods(node: &Node) -> Option<String> {
    let mtu = node.network.mtu?;
    let file = node.network.subnet_env.as_ref().map(|file| {
        let path = file.path.display();
        match file.state {
            FileState::Right => format!("; {path} is correct"),
            FileState::Missing => format!("; {path} is missing: no pod can start"),
            FileState::Different => format!("; {path} has other values"),
        }
    });
    Some(format!("MTU {mtu}{}", file.unwrap_or_default()))
}

fn store(node: &Node) -> Option<String> {
    let store = node.store.as_ref()?;
    let heard = store
        .heard
        .and_then(|heard| since(heard, node.at))
        .map(|ago| format!(", last heard {} ago", span(ago)));
    let trouble = store.trouble.as_ref().map(|trouble| format!("; {trouble}"));
    Some(format!(
        "{}{}{}",
        store.what,
        heard.unwrap_or_else(|| ", not heard yet".to_owned()),
        trouble.unwrap_or_default()
    ))
}

fn kernel(node: &Node) -> Option<String> {
    let kernel = node.kernel.as_ref()?;
    let counts = [
        (kernel.routes, "route", "routes"),
        (kernel.neighbours, "neighbour", "neighbours"),
        (kernel.fdb, "FDB entry", "FDB entries"),
        (
            kernel.wireguard.map_or(0, |wireguard| wireguard.peers),
            "WireGuard peer",
            "WireGuard peers",
        ),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }))
        .collect();
    let objects = if counts.is_empty() {
        "no objects".to_owned()
    } else {
        counts.join(", ")
    };
    let state = if kernel.in_sync {
        "all in sync".to_owned()
    } else {
        format!("not in sync: {}", kernel.trouble)
    };
    let back = if kernel.put_back > 0 {
        format!("; {} restored in the last hour", kernel.put_back)
    } else {
        String::new()
    };
    Some(format!("{objects}, {state}{back}"))
}

/// Returns text about the peers that the kernel refuses, with the reason of the first one.
fn failed_peers(node: &Node) -> Option<String> {
    let failed = &node.kernel.as_ref()?.failed_peers;
    let FailedPeer {
        node, subnet, text, ..
    } = failed.first()?;
    let name = node
        .as_ref()
        .map_or(String::new(), |node| format!(" ({node})"));
    let count = if failed.len() == 1 {
        "1 peer".to_owned()
    } else {
        format!("{} peers", failed.len())
    };
    Some(format!(
        "{count} cannot be programmed: {subnet}{name}: {text}"
    ))
}

/// Returns text about the WireGuard peers that complete no handshake.
fn silent_peers(node: &Node) -> Option<String> {
    let Wireguard { peers, silent } = node
        .kernel
        .as_ref()?
        .wireguard
        .filter(|wireguard| wireguard.silent > 0)?;
    Some(format!(
        "{silent} of {peers} WireGuard peers complete no handshake"
    ))
}

fn rules(node: &Node) -> Option<String> {
    let rules = node.rules.as_ref()?;
    let what = if rules.what.is_empty() {
        "none wanted".to_owned()
    } else {
        rules.what.join(", ")
    };
    let state = if rules.in_place {
        "in place".to_owned()
    } else {
        rules.trouble.clone()
    };
    Some(format!("{}: {what}; {state}", rules.with))
}

/// Returns text about the results of the probes on the path of pod packets.
fn pod_paths(node: &Node) -> Option<String> {
    let shown = |path: &PodPath| {
        let changed = path.lost.iter().any(|lost| lost.what == Lost::Address);
        let Some(address) = path.address else {
            return format!("{}: subnet too small for probes of pods", path.family);
        };
        let text = match (path.state, path.obstacle.as_deref()) {
            (PodState::Well, _) => "pass".to_owned(),
            (PodState::All | PodState::Some, _) if changed => {
                "arrive with another address".to_owned()
            }
            (PodState::All, _) => "are lost on this node".to_owned(),
            (PodState::Some, _) => format!(
                "are lost from or to {} of {} peers",
                path.lost.len(),
                path.asked
            ),
            (PodState::Unknown, Some("no-bridge")) => "not sent before the first pod".to_owned(),
            (PodState::Unknown, Some("taken")) => "not sent: a pod has the address".to_owned(),
            (PodState::Unknown, Some("refused")) => "not sent: the kernel refuses".to_owned(),
            (PodState::Unknown, Some("flooded")) => "unknown: the address is flooded".to_owned(),
            (PodState::Unknown, Some("filtered")) => {
                "unknown: every peer filters new packets to the probe port".to_owned()
            }
            (PodState::Unknown, Some("nobody-answers")) => {
                "not sent: no peer replies to this node".to_owned()
            }
            (PodState::Unknown, _) => "not sent yet".to_owned(),
        };
        format!("pods' packets, from {address}: {text}")
    };
    let all: Vec<String> = node.pod_paths.as_ref()?.iter().map(shown).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn peers(node: &Node) -> String {
    let all = node.peers.len();
    match &node.mesh {
        Some(mesh) if !mesh.peers.is_empty() => {
            // A node with both families has two verdicts.
            let verdicts = |peer: &node_api::Peer| -> Vec<bool> {
                mesh.peers
                    .iter()
                    .filter(|verdict| peer.subnets.contains(&verdict.subnet))
                    .map(|verdict| verdict.state.impact() == Impact::None)
                    .collect()
            };
            let probed: Vec<Vec<bool>> = node
                .peers
                .iter()
                .map(verdicts)
                .filter(|verdicts| !verdicts.is_empty())
                .collect();
            let well = probed
                .iter()
                .filter(|verdicts| verdicts.iter().all(|well| *well));
            format!("{} of {} well", well.count(), probed.len())
        }
        _ if all == 1 => "1, not probed".to_owned(),
        _ => format!("{all}, not probed"),
    }
}

/// Returns the URL of the JSON document, and how to reach it from another machine.
fn api(url: &str, node: &str) -> String {
    let url = url.trim_end_matches('/');
    let port = url.rsplit(':').next().unwrap_or_default();
    let document = format!("{url}{}", node_api::NODE);
    match url.contains("127.0.0.1") || url.contains("[::1]") {
        true => format!("{document}   from afar: ssh -L {port}:127.0.0.1:{port} {node}"),
        false => document,
    }
}

fn joined<T: Display>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" and ")
}

/// Returns the time from `then` to `now`; `None` if `then` is later.
fn since(then: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(then)).ok()
}

#[cfg(test)]
mod tests;
