//! The table of all checks, and how to evaluate them. Has no side effects.

use crate::check::Check;
use crate::checks::{self, daemon, daemon_set, firewall, interface};
use crate::facts::Facts;
use crate::finding::{DaemonState, Finding, Report, SCHEMA, Severity, Unknown};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use types::printable;

/// Why the doctor skips some checks shortly after the start of flanneld.
const YOUNG: &str = "flanneld started a moment ago, and its objects may still be missing";

/// A check for a cause precedes the checks whose findings it may explain.
pub fn checks() -> impl Iterator<Item = &'static Check> + Clone {
    [
        interface::CHECKS,
        checks::kubernetes::CHECKS,
        checks::store::CHECKS,
        checks::devices::CHECKS,
        daemon::CHECKS,
        checks::leases::CHECKS,
        checks::tunnel_loop::CHECKS,
        checks::sysctls::CHECKS,
        firewall::CHECKS,
        checks::drops::CHECKS,
        checks::kernel::CHECKS,
        checks::network::CHECKS,
        checks::pod_path::CHECKS,
        checks::limits::CHECKS,
        checks::underlay::CHECKS,
        checks::mesh::CHECKS,
        checks::pod_probes::CHECKS,
        checks::pods::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// Runs all checks.
pub fn judge(facts: &Facts, at: Timestamp) -> Report {
    let (mut findings, mut unknown) = (Vec::new(), Vec::new());
    for check in checks() {
        let missing = check.needs.iter().find_map(|need| need.missing(facts));
        match missing {
            Some(why) => unknown.push(Unknown {
                check: check.id.to_owned(),
                why: printable::line(why).into_owned(),
            }),
            None if check.waits && facts.daemon.young => {
                unknown.push(Unknown { check: check.id.to_owned(), why: YOUNG.to_owned() });
            }
            None => findings.extend((check.judge)(facts)),
        }
    }
    for finding in &mut findings {
        daemon_set::tell_place(finding, facts);
        finding.clean();
    }
    // The sort is stable: within one severity the order of the table remains.
    findings.sort_by_key(|finding| finding.severity);
    fold(&mut findings);
    findings.sort_by_key(|finding| finding.explained_by.is_some());
    let daemon = match (facts.daemon.running.known(), facts.daemon.silent.known()) {
        (Some(true), Some(silent)) if !silent.is_empty() => DaemonState::Hanging,
        (Some(true), _) => DaemonState::Running,
        (Some(false), _) => DaemonState::Stopped,
        (None, _) => DaemonState::Unknown,
    };
    Report {
        schema: SCHEMA.to_owned(),
        node: printable::value(&facts.host.name).into_owned(),
        at,
        daemon,
        checks: checks().count(),
        findings,
        unknown,
    }
}

/// An explained finding explains no other findings, so every explanation names a root cause.
fn fold(findings: &mut [Finding]) {
    let mut causes: Vec<(&'static Check, Vec<Finding>)> = Vec::new();
    let found: BTreeSet<String> = findings.iter().map(|finding| finding.check.clone()).collect();
    for check in checks().filter(|check| found.contains(check.id)) {
        let explain = |(cause, of): &&(&'static Check, Vec<Finding>), finding: &Finding| {
            let fits = of.iter().filter(|cause| fits(cause, finding));
            cause.explains.contains(&check.id) && cover(fits, finding)
        };
        let mut unexplained = Vec::new();
        for finding in findings.iter_mut().filter(|finding| finding.check == check.id) {
            finding.explained_by = causes
                .iter()
                .find(|cause| explain(cause, finding))
                .map(|(cause, _)| cause.id.to_owned());
            if finding.explained_by.is_none() {
                unexplained.push(finding.clone());
            }
        }
        if !unexplained.is_empty() {
            causes.push((check, unexplained));
        }
    }
}

/// True if the cause is as severe as its consequence, and not of the other family. The daemon neither starts nor probes without a port, although pod
/// packets do not need it.
fn fits(cause: &Finding, finding: &Finding) -> bool {
    let is_of_port = cause.check == daemon::PORT_TAKEN
        && matches!(finding.check.as_str(), "not-running" | "probe-filtered");
    let differs = cause.family.is_some_and(|of| finding.family.is_some_and(|other| other != of));
    !differs && (cause.severity <= finding.severity || is_of_port)
}

/// True if the causes are about this node, or together about all peers of the finding.
fn cover<'a>(mut causes: impl Iterator<Item = &'a Finding>, finding: &Finding) -> bool {
    let mut left = finding.scope.clone().unwrap_or_default();
    let is_of_peers = !left.is_empty();
    causes.any(|cause| match &cause.scope {
        None => true,
        Some(scope) => {
            left.retain(|subnet| !scope.contains(subnet));
            is_of_peers && left.is_empty()
        }
    })
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// The number of unexplained findings. Without an entry for a check with an unknown result.
    pub findings: BTreeMap<(&'static str, Severity), u64>,
    /// 1 for each check with an unknown result, otherwise 0.
    pub unknown: BTreeMap<&'static str, u64>,
}

/// Counts for the metrics.
pub fn tally(report: &Report) -> Tallied {
    let mut all = Tallied::default();
    for check in checks() {
        let is_unknown = report.unknown.iter().any(|unknown| unknown.check == check.id);
        all.unknown.insert(check.id, u64::from(is_unknown));
        if is_unknown {
            continue;
        }
        all.findings.insert((check.id, check.severity), 0);
        for finding in report.causes().filter(|finding| finding.check == check.id) {
            *all.findings.entry((check.id, finding.severity)).or_default() += 1;
        }
    }
    all
}
