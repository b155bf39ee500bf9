//! Stored leases that this node does not use.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The reason for a lease whose key in the store is unreadable.
pub const UNREADABLE: &str = "unreadable";

/// A stored lease that this node does not use. This node has no route to its holder.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unused {
    /// Subnets of the lease, or its key in the store if the key is unreadable.
    pub lease: String,
    /// A short name, which also labels the metrics.
    pub reason: &'static str,
    /// The reason as a sentence.
    pub text: String,
    /// Address of this host that the lease publishes.
    #[serde(skip)]
    pub address: Option<IpAddr>,
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

/// Omits unreadable keys.
pub(super) fn refused_by_reason(unused: &[Unused]) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for unused in unused.iter().filter(|unused| unused.reason != UNREADABLE) {
        *counts.entry(unused.reason).or_default() += 1;
    }
    counts
}
