//! Leases in the store that this node does not use.

use std::collections::BTreeMap;

/// Reason for an unreadable key.
pub const UNREADABLE: &str = "unreadable";

/// A lease in the store that this node does not use. This node has no route to the lease's holder.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unused {
    /// Subnets of the lease, or the lease's key if the subnets are unknown.
    pub lease: String,
    /// Reason, as in the metrics.
    pub reason: &'static str,
    /// Reason, as text.
    pub text: String,
}

impl Unused {
    pub(super) fn shown(&self) -> node_api::Unused {
        node_api::Unused {
            lease: self.lease.clone(),
            reason: self.reason.to_owned(),
            text: self.text.clone(),
        }
    }
}

/// Counts the leases that are not in force, by reason.
pub(super) fn refused_by_reason(unused: &[Unused]) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for unused in unused.iter().filter(|unused| unused.reason != UNREADABLE) {
        *counts.entry(unused.reason).or_default() += 1;
    }
    counts
}
