//! A lease that this node holds.

use super::registry::Compare;
use crate::lease::{Lease, LeaseAttrs, Term};
use crate::wire;
use std::time::Duration;
use types::Subnets;

/// A lease that this node holds, with the revisions of the key and the store's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub key: String,
    pub subnets: Subnets,
    /// Written last.
    pub attrs: LeaseAttrs,
    /// Revision that created the key. A lower one means an older lease.
    pub created: i64,
    /// Revision of this node's last write.
    pub modified: i64,
    /// The store's lease to which the key is attached; 0 for a reservation.
    pub lease: i64,
    /// The store's lease that this node keeps alive: the key's, or for a reservation one without a key.
    pub keepalive: i64,
    /// Last successful renewal, on the boot-time clock.
    pub renewed: Duration,
}

impl Tenure {
    #[must_use]
    pub fn lease(&self) -> Lease {
        let term = if self.lease == 0 { Term::Reserved } else { Term::Leased };
        Lease { subnets: self.subnets, attrs: self.attrs.clone(), term, since: self.created }
    }

    /// This node's last write tells that another node claims the lease, too.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.attrs.node.as_ref().is_some_and(|node| node.contested)
    }

    /// The conditions under which the key still contains this node's last write.
    #[must_use]
    pub fn unchanged(&self) -> Vec<Compare> {
        vec![
            Compare::Unchanged { key: self.key.clone(), modified: self.modified },
            Compare::Holds { key: self.key.clone(), value: wire::render_value(&self.attrs) },
        ]
    }
}
