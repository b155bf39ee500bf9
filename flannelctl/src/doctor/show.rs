//! Renders the text of `flannelctl doctor` as a pure function of the report.

use std::collections::BTreeMap;
use std::fmt::Write;

use doctor::finding::{Finding, HERE, Report, Severity};

use terminal::screen::{Screen, Style};

/// The column in which the check's name ends.
const WIDTH: usize = 100;
/// The column in which texts under a headline begin.
const INDENT: usize = 11;

pub(super) fn text(report: &Report, all: bool, screen: Screen) -> String {
    let mut out = String::new();
    for finding in report.causes() {
        cause(finding, report, all, screen, &mut out);
    }
    unknown(report, all, screen, &mut out);
    let count = |severity| report.count(severity);
    let bad: std::collections::BTreeSet<&str> = report
        .findings
        .iter()
        .map(|finding| finding.check.as_str())
        .chain(report.unknown.iter().map(|unknown| unknown.check.as_str()))
        .collect();
    let risks = match count(Severity::Risk) {
        1 => "1 risk".to_owned(),
        many => format!("{many} risks"),
    };
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "{} checks: {} broken, {} degraded, {risks}, {} unknown, {} well",
        report.checks,
        count(Severity::Broken),
        count(Severity::Degraded),
        report.unknown.len(),
        report.checks.saturating_sub(bad.len()),
    );
    out
}

fn sign(severity: Severity, screen: Screen) -> String {
    match (severity, screen.has_signs()) {
        (Severity::Broken, true) => screen.styled(Style::Bad, "✗"),
        (Severity::Degraded, true) => screen.styled(Style::Bad, "!"),
        (Severity::Risk, true) => screen.styled(Style::Strong, "~"),
        (severity, false) => format!("{severity}:"),
    }
}

fn cause(finding: &Finding, report: &Report, all: bool, screen: Screen, out: &mut String) {
    headline(finding, screen, out);
    details(finding, screen, out);
    let explained: Vec<&Finding> = report.explained(finding).collect();
    if explained.is_empty() {
        return;
    }
    let more = if all { "" } else { "  (--all shows them)" };
    let names: Vec<String> = explained
        .iter()
        .map(|finding| format!("{} {}", finding.check, finding.about).trim_end().to_owned())
        .collect();
    let _ = writeln!(
        out,
        "    it explains {} more: {}{}",
        explained.len(),
        names.join(", "),
        screen.styled(Style::Faint, more)
    );
    if all {
        for finding in explained {
            let _ = writeln!(out, "      {}: {}: {}", finding.check, finding.what, finding.why);
        }
    }
}

/// The problem, and the check that found it.
pub(super) fn headline(finding: &Finding, screen: Screen, out: &mut String) {
    let (what, check) = (&finding.what, &finding.check);
    let sign = sign(finding.severity, screen);
    let used = what.chars().count() + check.chars().count() + 2;
    let room = screen.width().map_or(WIDTH, |width| width.min(WIDTH));
    let strong = |text: &str| screen.styled(Style::Strong, text);
    let check = screen.styled(Style::Faint, check);
    // Writing to a String cannot fail.
    if screen.width().is_none_or(|width| used + 2 <= width) {
        let gap = " ".repeat(room.saturating_sub(used).max(2));
        let _ = writeln!(out, "{sign} {}{gap}{check}", strong(what));
        return;
    }
    // On a narrow terminal the check has a separate line.
    for (number, line) in screen.wrap(what, 2).iter().enumerate() {
        let before = if number == 0 { sign.as_str() } else { " " };
        let _ = writeln!(out, "{before} {}", strong(line));
    }
    let _ = writeln!(out, "    {check}");
}

/// The cause, the evidence and the commands of a finding.
pub(super) fn details(finding: &Finding, screen: Screen, out: &mut String) {
    let mut told = |word: &str, text: &str, from: Option<&str>| {
        let from = from.map(|from| format!("({from})"));
        let whole =
            from.as_deref().map_or_else(|| text.to_owned(), |from| format!("{text}  {from}"));
        let lines = screen.wrap(&whole, INDENT);
        if let ([_], Some(from)) = (lines.as_slice(), &from) {
            let _ = writeln!(out, "    {word:<6} {text}  {}", screen.styled(Style::Faint, from));
            return;
        }
        for (number, line) in lines.iter().enumerate() {
            let word = if number == 0 { word } else { "" };
            let _ = writeln!(out, "    {word:<6} {line}");
        }
    };
    told("why", &finding.why, None);
    for (number, seen) in finding.evidence.iter().enumerate() {
        let word = if number == 0 { "seen" } else { "" };
        told(word, &seen.text, Some(&seen.from));
    }
    // Commands are never wrapped, because users paste them.
    for (number, command) in finding.remedy.commands.iter().enumerate() {
        let word = if number == 0 { "do" } else { "" };
        let place = if number == 0 && finding.remedy.on != HERE {
            format!("      {}", screen.styled(Style::Faint, format!("(on {})", finding.remedy.on)))
        } else {
            String::new()
        };
        let _ = writeln!(out, "    {word:<6} {}{place}", screen.styled(Style::Strong, command));
    }
}

/// The checks with an unknown result, grouped by reason, because one reason often affects many.
fn unknown(report: &Report, all: bool, screen: Screen, out: &mut String) {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for unknown in &report.unknown {
        by_reason.entry(&unknown.why).or_default().push(&unknown.check);
    }
    let (sign, word) = if screen.has_signs() {
        (screen.styled(Style::Faint, "?"), "unknown: ")
    } else {
        ("unknown:".to_owned(), "")
    };
    for (why, checks) in by_reason {
        let names = match checks.as_slice() {
            [first, second, rest @ ..] if !all && rest.len() > 1 => {
                format!("{first}, {second} and {} more", rest.len())
            }
            _ => checks.join(", "),
        };
        let _ = writeln!(out, "{sign} {names}   {word}{why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doctor::finding::{DaemonState, SCHEMA, Unknown};

    fn report() -> Report {
        let cause = Finding::new(
            "wrong-interface",
            Severity::Broken,
            "enp0s3",
            "flannel uses enp0s3",
            "nothing named an interface",
        )
        .seen("10.0.2.15/24 with the gateway 10.0.2.2", "ip address")
        .seen("node-2 does not respond", "probes")
        .run(r"printf '\n%s\n' FLANNELD_IFACE=enp0s8 >> /etc/default/flanneld")
        .run("systemctl restart flanneld")
        .on("every node");
        let folded = Finding {
            explained_by: Some("wrong-interface".to_owned()),
            ..Finding::new(
                "peer-cut",
                Severity::Broken,
                "node-2",
                "node-2 does not respond",
                "it is off",
            )
        };
        let risk = Finding::new("clock", Severity::Risk, "", "the clock is wrong", "certificates");
        let unknown =
            |check: &str, why: &str| Unknown { check: check.to_owned(), why: why.to_owned() };
        Report {
            schema: SCHEMA.to_owned(),
            node: "n1".to_owned(),
            at: "2026-01-01T00:00:00Z".parse().unwrap(),
            daemon: DaemonState::Running,
            checks: 53,
            findings: vec![cause, risk, folded],
            unknown: vec![
                unknown("ipam-full", "permission denied"),
                unknown("mtu", "no probes"),
                unknown("slow", "no probes"),
                unknown("lossy", "no probes"),
                unknown("clock", "no probes"),
            ],
        }
    }

    #[test]
    fn cause_comes_first_with_its_commands() {
        let text = text(&report(), false, Screen::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("broken: flannel uses enp0s3")
                && lines[0].ends_with("wrong-interface"),
            "{text}"
        );
        assert_eq!(
            lines[1..],
            [
                "    why    nothing named an interface",
                "    seen   10.0.2.15/24 with the gateway 10.0.2.2  (ip address)",
                "           node-2 does not respond  (probes)",
                r"    do     printf '\n%s\n' FLANNELD_IFACE=enp0s8 >> /etc/default/flanneld      (on every node)",
                "           systemctl restart flanneld",
                "    it explains 1 more: peer-cut node-2  (--all shows them)",
                &format!("risk: the clock is wrong{}clock", " ".repeat(75)),
                "    why    certificates",
                "unknown: mtu, slow and 2 more   no probes",
                "unknown: ipam-full   permission denied",
                "53 checks: 1 broken, 0 degraded, 1 risk, 5 unknown, 46 well",
            ],
            "{text}"
        );
    }

    #[test]
    fn explained_findings_are_shown_with_all() {
        let text = text(&report(), true, Screen::plain());
        assert!(
            text.contains("      peer-cut: node-2 does not respond: it is off\n")
                && text.contains("unknown: mtu, slow, lossy, clock   no probes"),
            "{text}"
        );
    }
}
