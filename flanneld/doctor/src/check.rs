//! Definition of a check.

use crate::facts::Facts;
use crate::finding::{Finding, Severity};
use crate::need::Need;

/// Definition of a check of the doctor.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name of the check in metrics, JSON and documentation.
    pub id: &'static str,
    /// Usual severity of the check's findings, as in the documentation. A finding of the check may have another severity.
    pub severity: Severity,
    /// Heading of the check's section in the documentation.
    pub title: &'static str,
    /// Facts from which the check derives its findings. If a fact is unavailable, the result of the check is unknown.
    pub needs: &'static [Need],
    /// Ids of checks whose findings are consequences of a finding of this check.
    pub explains: &'static [&'static str],
    /// Whether the doctor skips the check in the daemon's first seconds, while the data about peers and probes is incomplete.
    pub waits: bool,
    /// Returns the findings of the check for the given facts.
    pub judge: fn(&Facts) -> Vec<Finding>,
}

impl Check {
    /// Defines a check, which the doctor also runs in the daemon's first seconds.
    pub(crate) const fn new(
        id: &'static str,
        severity: Severity,
        title: &'static str,
        needs: &'static [Need],
        explains: &'static [&'static str],
        judge: fn(&Facts) -> Vec<Finding>,
    ) -> Self {
        Self { id, severity, title, needs, explains, waits: false, judge }
    }

    /// Makes the doctor skip the check in the daemon's first seconds.
    pub(crate) const fn waiting(self) -> Self {
        Self { waits: true, ..self }
    }
}
