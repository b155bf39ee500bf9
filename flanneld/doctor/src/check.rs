//! What a check is.

use crate::facts::Facts;
use crate::finding::{Finding, Severity};
use crate::need::Need;

/// A check of the doctor, as data.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name, in metrics, JSON and documentation.
    pub id: &'static str,
    /// How bad it usually is.
    pub severity: Severity,
    /// What it is about, in a few words: the heading of its section.
    pub title: &'static str,
    /// The facts without which it is unknown.
    pub needs: &'static [Need],
    /// The checks whose findings are consequences of this one's.
    pub explains: &'static [&'static str],
    /// Whether it means something only once the daemon has run for some seconds.
    pub waits: bool,
    /// Returns the findings from the facts.
    pub judge: fn(&Facts) -> Vec<Finding>,
}
