//! Compares findings with earlier reports: how old they are, which are new, and which no longer exist.

use crate::finding::{Finding, Report};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// The findings of the last report, with the time of their first report.
#[derive(Debug, Default)]
pub struct Ledger {
    known: BTreeMap<(String, String), (Timestamp, Finding)>,
}

/// What changed between two reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// New findings, and findings that no other finding explains any more.
    pub came: Vec<Finding>,
    /// Findings that the report no longer contains.
    pub went: Vec<Finding>,
}

impl Ledger {
    /// Sets the time at which each finding first appeared.
    pub fn enter(&mut self, report: &mut Report) -> News {
        let mut news = News::default();
        let mut now = BTreeMap::new();
        for finding in &mut report.findings {
            let known = self.known.get(&finding.key());
            let since = known.map(|(since, _)| *since);
            finding.since = Some(since.unwrap_or(report.at));
            // The daemon does not report explained findings. One that is no longer explained is therefore new to the operator.
            let was_explained = known.is_some_and(|(_, before)| before.explained_by.is_some());
            if since.is_none() || was_explained && finding.explained_by.is_none() {
                news.came.push(finding.clone());
            }
            now.insert(finding.key(), (since.unwrap_or(report.at), finding.clone()));
        }
        // An unknown check proves nothing, so its earlier findings remain.
        let blind =
            |finding: &Finding| report.unknown.iter().any(|unknown| unknown.check == finding.check);
        for (key, (since, finding)) in std::mem::take(&mut self.known) {
            if now.contains_key(&key) {
                continue;
            }
            if blind(&finding) {
                now.insert(key, (since, finding));
            } else {
                news.went.push(finding);
            }
        }
        self.known = now;
        news
    }
}
