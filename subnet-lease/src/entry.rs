//! Leases in the form of the store's entries: keys with values and revisions.

use crate::wire;
use std::sync::Arc;
use types::Subnets;

/// Key under `subnets/`, with its value and revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The part of the key after `subnets/`.
    pub key: String,
    /// The bytes of the value.
    pub value: Arc<[u8]>,
    /// The revision at which the key was created.
    pub created: i64,
    /// The revision of the last write of the key. A compare-and-swap compares this revision.
    pub modified: i64,
    /// Id of the store's lease to which the key is attached; 0 if the key is not attached to a lease.
    pub lease: i64,
}

/// All lease keys at one revision of the store.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Listing {
    /// The revision of the store at which the list was taken.
    pub revision: i64,
    /// The keys in ascending order.
    pub entries: Vec<Entry>,
}

impl Entry {
    /// Returns the subnets in the key; `None` if the key does not belong to a lease.
    pub fn subnets(&self) -> Option<Subnets> {
        wire::parse_key(&self.key)
    }
}
