//! Renders the text of `flannelctl status` as a pure function of the status.

use doctor::finding::DaemonState;
use doctor::{Finding, Severity};
use jiff::Timestamp;
use node_api::facts::{facts, since, span};
use node_api::{Node, Status};
use std::time::Duration;
use types::printable;
use types::reachability::Impact;

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

/// The unexplained findings of severity `broken` or `degraded`.
fn broken(node: &Node) -> Vec<&Finding> {
    causes(node).filter(|finding| finding.severity != Severity::Risk).collect()
}

fn causes(node: &Node) -> impl Iterator<Item = &Finding> {
    node.findings.iter().flatten().filter(|finding| finding.explained_by.is_none())
}

/// Peers that packets do not reach. Empty if the doctor has reported, because its findings name them.
fn cut(node: &Node) -> Vec<&probing::view::PeerView> {
    let all = node.mesh.iter().flat_map(|mesh| &mesh.peers);
    all.filter(|peer| node.findings.is_none() && peer.state.impact() == Impact::All).collect()
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
    let reasons = report.text.lines().map(|line| format!("    {}", printable::line(line)));
    std::iter::once(first)
        .chain(reasons)
        .chain([format!("  {DOCTOR}")])
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first line of the status text.
fn sentence(well: bool, text: &str, screen: Screen) -> String {
    match (screen.has_signs(), well) {
        (true, true) => {
            format!("{} {}", screen.styled(Style::Good, "✓"), screen.styled(Style::Strong, text))
        }
        (true, false) => {
            format!("{} {}", screen.styled(Style::Bad, "✗"), screen.styled(Style::Strong, text))
        }
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

/// The node's name and state, with flanneld's version on the right.
fn headline(node: &Node, is_well: bool, screen: Screen) -> String {
    let name = printable::value(&node.node);
    let count =
        |severity| broken(node).iter().filter(|finding| finding.severity == severity).count();
    // The headline counts degraded findings only if nothing is broken.
    let (number, word) = match count(Severity::Broken) + cut(node).len() {
        0 => (count(Severity::Degraded), Severity::Degraded),
        number => (number, Severity::Broken),
    };
    let state = match (node.readiness.silent.is_some(), node.readiness.ready, number) {
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
        if screen.width().is_some_and(is_narrow) { "\n  ".to_owned() } else { " ".repeat(gap) },
        screen.styled(Style::Faint, version)
    )
}

/// A line for each problem: findings, peers that are cut off, risks, and reasons why the node is not ready.
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
    let cut = cut(node).into_iter().map(|peer| problem(Severity::Broken, &peer_text(peer)));
    let risks = causes(node)
        .filter(|finding| finding.severity == Severity::Risk)
        .map(|finding| problem(finding.severity, &finding_text(finding, node.at)));
    let hangs = node.readiness.silent.iter().map(|text| line("hangs", text, screen));
    let reasons = node.readiness.reasons.iter().map(|reason| {
        let text = format!("{}: {}", reason.condition, reason.text);
        line("not ready", &text, screen)
    });
    findings.chain(cut).chain(risks).chain(hangs).chain(reasons).collect()
}

/// One line each for subnet, address, store, kernel, rules, peers and other details of the node.
fn details(node: &Node, screen: Screen) -> Vec<String> {
    let page = node.page.as_ref().map(|url| page(url, &node.node));
    let notices = node
        .readiness
        .notices
        .iter()
        .map(|notice| ("note", format!("{}: {}", notice.name, notice.text)));
    facts(node)
        .into_iter()
        .chain(page.map(|text| ("page", text)))
        .chain(notices)
        .map(|(name, text)| line(name, &text, screen))
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

/// The URL of the status API, and the command with which another machine reaches it.
fn page(url: &str, node: &str) -> String {
    let port = url.trim_end_matches('/').rsplit(':').next();
    match url.contains("127.0.0.1") || url.contains("[::1]") {
        true => {
            let port = port.unwrap_or_default();
            format!("{url}   from another machine: ssh -L {port}:127.0.0.1:{port} {node}")
        }
        false => url.to_owned(),
    }
}

#[cfg(test)]
mod tests;
