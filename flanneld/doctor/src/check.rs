//! A check: its id, the facts it needs, and the function that judges them.
//!
//! ```
//! use doctor::facts::host::Fill;
//! use doctor::{Fact, Facts, table};
//!
//! let check = table::checks().find(|check| check.id == "conntrack-full").unwrap();
//! let mut facts = Facts::default();
//! assert_eq!(check.needs[0].missing(&facts), Some("not gathered"));
//!
//! facts.host.conntrack = Fact::Known(Fill { used: 95, limit: 100 });
//! let findings = (check.judge)(&facts);
//! assert_eq!(findings[0].what, "the connection tracking table has 95 of at most 100 entries");
//! let commands = &findings[0].remedy.commands;
//! assert_eq!(commands[0], "sysctl -w net.netfilter.nf_conntrack_max=200");
//! ```

use crate::facts::Facts;
use crate::finding::{Finding, Severity};
use crate::need::Need;

#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Also its name in metrics, JSON and the documentation.
    pub id: &'static str,
    /// The usual severity, as in the documentation; a finding may have another.
    pub severity: Severity,
    /// Heading of its section in the documentation.
    pub title: &'static str,
    /// If one of these facts is unavailable, the result of the check is unknown.
    pub needs: &'static [Need],
    /// Ids of checks whose findings may be consequences of a finding of this check.
    pub explains: &'static [&'static str],
    /// The doctor skips the check in the daemon's first seconds, while the data about peers and probes is incomplete.
    pub waits: bool,
    pub judge: fn(&Facts) -> Vec<Finding>,
}

impl Check {
    /// A check that also runs in the daemon's first seconds.
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
