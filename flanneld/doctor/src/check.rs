//! Definition of a check.

use crate::facts::Facts;
use crate::finding::{Finding, Severity};
use crate::need::Need;

/// A check of the doctor, as data.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name of the check in metrics, JSON and documentation.
    pub id: &'static str,
    /// Usual severity of the check's findings, which the documentation lists. A finding may have another severity.
    pub severity: Severity,
    /// Heading of the check's section: the subject in a few words.
    pub title: &'static str,
    /// Facts that the check needs. If a fact is unavailable, the result of the check is unknown.
    pub needs: &'static [Need],
    /// Ids of checks whose findings are consequences of a finding of this check.
    pub explains: &'static [&'static str],
    /// Whether the doctor skips the check in the first seconds of a daemon, when the peers and the probe results are not complete yet.
    pub waits: bool,
    /// Returns the findings from the facts.
    pub judge: fn(&Facts) -> Vec<Finding>,
}
