//! The doctor finds each fault, finds none on a healthy node, and reports the result of a check without facts as unknown.

mod cases;
mod causes;
mod firewalld;
mod harm;
mod healthy;
mod listings;
mod peers;
mod record;
mod remedies;
mod trap;
mod wireguard;

use crate::facts::Facts;
use crate::facts::mesh::State;
use crate::finding::{Finding, Report};
use crate::ledger::Ledger;
use crate::need::Need;
use crate::shell;
use crate::table::{checks, judge};
use cases::{faults, paths};
use healthy::healthy;
use jiff::Timestamp;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Serves the tests of [`crate::look`].
pub(crate) fn healthy_host() -> crate::facts::host::Host {
    healthy().host
}

pub(crate) fn network() -> crate::facts::Network {
    healthy().network.known().unwrap().clone()
}

fn report(facts: &Facts) -> Report {
    judge(facts, Timestamp::UNIX_EPOCH)
}

/// The checks of the unexplained findings, in the order of the report.
fn causes(facts: &Facts) -> Vec<String> {
    report(facts).causes().map(|finding| finding.check.clone()).collect()
}

/// The commands of the only finding of the check.
fn commands_of(facts: &Facts, check: &str) -> Vec<String> {
    only(facts, check).remedy.commands
}

/// Panics unless the check has exactly one finding.
fn only(facts: &Facts, check: &str) -> Finding {
    let report = report(facts);
    let found: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.check == check).collect();
    assert!(found.len() == 1, "{check}: {report:#?}");
    found[0].clone()
}

#[test]
fn missing_facts_leave_every_check_unknown() {
    let report = report(&Facts::default());
    assert_eq!(report.findings, []);
    let unknown: BTreeSet<&str> =
        report.unknown.iter().map(|unknown| unknown.check.as_str()).collect();
    assert_eq!(unknown, checks().map(|check| check.id).collect());
    assert_eq!(report.checks, unknown.len());
}

#[test]
fn healthy_node_has_no_findings_and_no_unknown_checks() {
    let report = report(&healthy());
    assert_eq!((report.findings, report.unknown), (vec![], vec![]));
}

#[test]
fn table_of_checks_is_consistent() {
    let ids: Vec<&str> = checks().map(|check| check.id).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "each name once");
    for check in checks() {
        assert!(
            !check.needs.is_empty() && !check.title.is_empty() && !check.title.ends_with('.'),
            "{}",
            check.id
        );
        for explained in check.explains {
            let place = |id: &str| {
                ids.iter()
                    .position(|known| *known == id)
                    .unwrap_or_else(|| panic!("{}: there is no check {id}", check.id))
            };
            assert!(
                place(explained) > place(check.id),
                "{} is after {explained}, which it explains",
                check.id
            );
        }
    }
}

#[test]
fn check_is_raised_only_by_its_case() {
    let mut raised = BTreeSet::new();
    for (check, facts) in faults() {
        // A finding that always comes with its cause is explained by that cause.
        let explains = |cause: &String| {
            cause == check
                || checks().any(|known| known.id == cause && known.explains.contains(&check))
        };
        let (findings, causes) = (report(&facts).findings, causes(&facts));
        let found = findings.iter().any(|finding| finding.check == check);
        assert!(found && causes.iter().all(explains), "{check}: {causes:?} of {findings:#?}");
        for finding in &findings {
            let texts = finding.evidence.iter().flat_map(|seen| [&seen.text, &seen.from]);
            let all = [&finding.what, &finding.why].into_iter().chain(texts);
            assert!(
                !finding.evidence.is_empty() && all.clone().all(|text| !text.is_empty()),
                "{finding:?}"
            );
            // The program that prints the text adds the full stop.
            assert!(all.take(2).all(|text| !text.ends_with('.')), "{finding:?}");
        }
        raised.insert(check);
    }
    assert_eq!(raised, checks().map(|check| check.id).collect(), "each check has a case");
}

#[test]
fn unavailable_fact_leaves_its_checks_unknown() {
    for check in checks() {
        for need in check.needs {
            // The fault exists, but without the fact the check must not report it.
            for (_, mut facts) in faults().filter(|(id, _)| *id == check.id) {
                need.withhold(&mut facts);
                let report = report(&facts);
                let finds = report.findings.iter().any(|finding| finding.check == check.id);
                assert!(!finds, "{} without {need:?}", check.id);
                let mut unknown = report.unknown.iter();
                let unknown = unknown.find(|unknown| unknown.check == check.id).unwrap();
                assert_eq!(unknown.why, "permission denied");
            }
        }
    }
}

#[test]
fn waiting_checks_report_nothing_right_after_a_start() {
    for (id, mut facts) in faults() {
        facts.daemon.young = true;
        let waits = checks().any(|check| check.id == id && check.waits);
        let found = report(&facts).findings;
        assert_eq!(found.iter().any(|finding| finding.check == id), !waits, "{id}");
    }
}

#[test]
fn explained_finding_is_folded_and_explains_nothing() {
    let mut facts = healthy();
    for id in ["wrong-interface", "duplicate-address", "ip-forward"] {
        let (_, spoil) = cases::CASES.iter().find(|(check, _)| *check == id).unwrap();
        spoil(&mut facts);
    }
    assert_eq!(causes(&facts), ["wrong-interface", "ip-forward"]);
    let report = report(&facts);
    let mut explained = report.explained(report.causes().next().unwrap());
    assert!(explained.any(|finding| finding.check == "duplicate-address"), "{report:#?}");
    let mut rest = report.findings.iter().skip(2);
    assert!(rest.all(|finding| finding.explained_by.is_some()), "causes come first");
}

#[test]
fn report_survives_json() {
    for (id, mut facts) in faults() {
        if id != "ipam-full" {
            Need::Ipam.withhold(&mut facts);
        }
        let mut report = report(&facts);
        let text = serde_json::to_string(&report).unwrap();
        // JSON omits the family. Only the explanation of findings needs it, which is complete by then.
        report
            .findings
            .iter_mut()
            .for_each(|finding| (finding.family, finding.scope) = (None, None));
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let part = format!(r#""check":"{id}""#);
        assert!(
            text.contains(r#""schema":"flannel.findings/1""#) && text.contains(&part),
            "{text}"
        );
    }
}

#[test]
fn finding_is_dated_once_and_ends_once() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let mut ledger = Ledger::default();
    let mut bad = cases::spoiled("ip-forward");
    let mut first = judge(&bad, at(10));
    assert_eq!(ledger.enter(&mut first).came.len(), 1);
    let mut second = judge(&bad, at(20));
    assert_eq!(ledger.enter(&mut second), crate::ledger::News::default());
    assert_eq!(second.findings[0].since, Some(at(10)));
    // The finding of a check that has become unknown remains.
    Need::Sysctls.withhold(&mut bad);
    assert_eq!(ledger.enter(&mut judge(&bad, at(30))), crate::ledger::News::default());
    let mut went = || ledger.enter(&mut judge(&healthy(), at(40))).went.len();
    assert_eq!((went(), went()), (1, 0));
}

/// Untrusted names, some with control characters or shell syntax.
fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[$`\"'\\\\;|&<>\n\r\u{1b}\u{202e}]{4,20}",
        "\\$\\(touch /tmp/x\\)|`id`|'; reboot; '"
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..Default::default() })]

    #[test]
    fn hostile_names_are_printable_and_quoted(name in hostile()) {
        let of = |mut facts: Facts, name: &str| {
            cases::rename(&mut facts, name);
            report(&facts).findings
        };
        let bare = |command: &String| command.replace(r"'\''", "").split('\'').step_by(2).collect::<String>();
        let commands = |facts| of(facts, "zzz").iter().flat_map(|finding| &finding.remedy.commands).map(bare).collect::<Vec<_>>();
        for (own, finding) in faults().flat_map(|(_, facts)| of(facts.clone(), &name).into_iter().map(move |finding| (commands(facts.clone()), finding))) {
            let texts = [&finding.what, &finding.why, &finding.about].into_iter().chain(finding.evidence.iter().map(|seen| &seen.text));
            for text in texts.chain(&finding.remedy.commands) {
                prop_assert!(text.chars().all(types::printable::is_printable), "{:?}", text);
            }
            // A command contains a name that needs quotes only within quotes.
            for command in &finding.remedy.commands {
                // The command itself may contain a short name.
                let by_itself = own.iter().any(|own| own.contains(&name));
                prop_assert!(name.is_empty() || shell::word(&name) == name || by_itself || !bare(command).contains(&name), "{:?}", command);
            }
        }
    }
}

#[test]
fn severity_is_that_of_the_table_or_milder() {
    const MILDER: &[&str] =
        &["network-overlap", "lease", "rp-filter", "port-taken", "daemon-set", "ufw", "firewalld"];
    for (id, facts) in faults() {
        let declared = checks().find(|check| check.id == id).unwrap().severity;
        let found = report(&facts).findings.into_iter();
        let found = found
            .filter(|finding| finding.check == id)
            .map(|finding| finding.severity)
            .min()
            .unwrap();
        assert!(
            found == declared || MILDER.contains(&id) && found > declared,
            "{id}: {found} instead of {declared}"
        );
    }
}

#[test]
fn restarting_daemon_is_no_filtered_port() {
    let mut facts = healthy();
    let path = &mut paths(&mut facts)[0];
    (path.verdict.ping_only, path.since) = (true, Some(29));
    assert_eq!(causes(&facts), Vec::<String>::new());
    paths(&mut facts)[0].since = Some(30);
    assert_eq!(causes(&facts), ["probe-filtered"]);
    // A closed port is not a firewall's fault, so no command opens it.
    paths(&mut facts)[0].refuses = true;
    let refused = only(&facts, "probe-filtered");
    assert_eq!((refused.about.as_str(), refused.remedy.on.as_str()), ("refused", "node-2"));
    assert_eq!(refused.remedy.commands, ["flannelctl doctor"]);
}

#[test]
fn path_state_has_the_finding_that_the_docs_name() {
    let page = include_str!("../../../docs/probing.md");
    for state in State::ALL {
        let mut facts = healthy();
        let path = &mut paths(&mut facts)[0];
        (path.verdict.state, path.carries) = (state, Some(1400));
        let found = report(&facts).findings;
        let row = page.lines().find(|line| line.starts_with(&format!("| `{state}` |"))).unwrap();
        let named = row.split(" | ").nth(3).and_then(|cell| cell.split('`').nth(1));
        assert_eq!(
            found.first().map(|finding| finding.check.as_str()),
            named,
            "{state}: {found:?}"
        );
        assert!(
            named.is_none_or(|check| row.contains(&format!("(doctor-checks.md#{check})"))),
            "{row}"
        );
    }
}
