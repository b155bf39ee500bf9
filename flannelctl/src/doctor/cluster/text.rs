//! Renders the text of `flannelctl doctor --cluster` as a pure function of the document.

use std::collections::BTreeSet;
use std::fmt::Write;

use doctor::Severity;
use node_api::{Cluster, Shared, Unanswered};

use crate::doctor::show;
use terminal::screen::{Screen, Style};

/// Nodes that are listed by name for one finding or reason.
const MAX_NAMED: usize = 5;

/// `all` names every node and consequence.
pub(crate) fn text(cluster: &Cluster, all: bool, screen: Screen) -> String {
    let mut out = String::new();
    let most = if all { usize::MAX } else { MAX_NAMED };
    for shared in &cluster.findings {
        one(shared, cluster, most, screen, &mut out);
    }
    unanswered(&cluster.unanswered, most, screen, &mut out);
    let count = |severity: Severity| {
        cluster.findings.iter().filter(|shared| shared.finding.severity == severity).count()
    };
    let risks = match count(Severity::Risk) {
        1 => "1 risk".to_owned(),
        many => format!("{many} risks"),
    };
    let asked = cluster.answered.len() + cluster.unanswered.len();
    let nodes = if asked == 1 { "node" } else { "nodes" };
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "{asked} {nodes}, {} responded: {} broken, {} degraded, {risks}",
        cluster.answered.len(),
        count(Severity::Broken),
        count(Severity::Degraded),
    );
    out
}

fn one(shared: &Shared, cluster: &Cluster, most: usize, screen: Screen, out: &mut String) {
    show::headline(&shared.finding, screen, out);
    let _ = writeln!(
        out,
        "    on     {} ({} of {} nodes)",
        names(&shared.nodes, most),
        shared.nodes.len(),
        cluster.answered.len() + cluster.unanswered.len()
    );
    show::details(&shared.finding, screen, out);
    if shared.explains.is_empty() {
        return;
    }
    let checks: BTreeSet<&str> = shared.explains.iter().map(|one| one.check.as_str()).collect();
    let nodes: BTreeSet<&String> = shared.explains.iter().map(|one| &one.node).collect();
    let nodes: Vec<String> = nodes.into_iter().cloned().collect();
    let checks: Vec<&str> = checks.into_iter().collect();
    let _ = writeln!(
        out,
        "    this finding explains {} more on {}: {}",
        shared.explains.len(),
        names(&nodes, most),
        checks.join(", ")
    );
}

/// Grouped by reason.
fn unanswered(missing: &[Unanswered], most: usize, screen: Screen, out: &mut String) {
    let reasons: BTreeSet<&str> = missing.iter().map(|one| one.why.as_str()).collect();
    let sign =
        if screen.has_signs() { screen.styled(Style::Faint, "?") } else { "unknown:".to_owned() };
    for why in reasons {
        let nodes: Vec<String> =
            missing.iter().filter(|one| one.why == why).map(|one| one.node.clone()).collect();
        let _ = writeln!(out, "{sign} {}   no response: {why}", names(&nodes, most));
    }
}

fn names(nodes: &[String], most: usize) -> String {
    let shown: Vec<&str> = nodes.iter().take(most).map(String::as_str).collect();
    match nodes.len().saturating_sub(most) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doctor::Finding;
    use node_api::{CLUSTER, Consequence, Source};

    #[test]
    fn causes_are_shown_with_their_nodes_and_consequences() {
        let finding = Finding::new(
            "encap-blocked",
            Severity::Broken,
            "",
            "UDP 8472 is blocked",
            "a rule drops it",
        )
        .run("iptables -D INPUT 1")
        .on("n2");
        let consequence = |node: &str| Consequence {
            node: node.to_owned(),
            check: "one-way".to_owned(),
            what: String::new(),
        };
        let everywhere = Finding::new("clock", Severity::Risk, "", "the clock is wrong", "why")
            .run("timedatectl set-ntp true")
            .on("each of these nodes");
        let cluster = Cluster {
            schema: CLUSTER.to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
            source: Source::Pods,
            answered: (1..=9).map(|number| format!("n{number}")).collect(),
            unanswered: vec![Unanswered {
                node: "n10".to_owned(),
                why: "the node's pod did not respond within 8 s".to_owned(),
            }],
            findings: vec![
                Shared {
                    nodes: vec!["n2".to_owned()],
                    finding,
                    explains: vec![consequence("n1"), consequence("n3")],
                },
                Shared {
                    nodes: (1..=7).map(|number| format!("n{number}")).collect(),
                    finding: everywhere,
                    explains: Vec::new(),
                },
            ],
        };
        let shown = text(&cluster, false, Screen::plain());
        let lines: Vec<&str> = shown.lines().collect();
        assert!(
            lines[0].starts_with("broken: UDP 8472 is blocked")
                && lines[0].ends_with("encap-blocked")
        );
        assert_eq!(
            lines[1..5],
            [
                "    on     n2 (1 of 10 nodes)",
                "    why    a rule drops it",
                "    do     iptables -D INPUT 1      (on n2)",
                "    this finding explains 2 more on n1, n3: one-way",
            ]
        );
        assert_eq!(
            lines[6..],
            [
                "    on     n1, n2, n3, n4, n5 and 2 more (7 of 10 nodes)",
                "    why    why",
                "    do     timedatectl set-ntp true      (on each of these nodes)",
                "unknown: n10   no response: the node's pod did not respond within 8 s",
                "10 nodes, 9 responded: 1 broken, 0 degraded, 1 risk",
            ]
        );
        assert!(text(&cluster, true, Screen::plain()).contains("n6, n7 (7 of 10"));
    }
}
