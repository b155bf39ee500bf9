//! Leases in the form of the store's entries: keys with values and revisions.

use crate::wire;
use std::sync::Arc;
use types::Subnets;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The part of the key after `subnets/`.
    pub key: String,
    pub value: Arc<[u8]>,
    /// Revision at which the key was created.
    pub created: i64,
    /// Revision of the last write. A compare-and-swap compares it.
    pub modified: i64,
    /// The store's lease to which the key is attached; 0 if none.
    pub lease: i64,
}

/// All lease keys at one revision of the store.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Listing {
    pub revision: i64,
    /// In ascending order of their keys.
    pub entries: Vec<Entry>,
}

impl Entry {
    /// `None` if the key does not belong to a lease.
    #[must_use]
    pub fn subnets(&self) -> Option<Subnets> {
        wire::parse_key(&self.key)
    }
}
