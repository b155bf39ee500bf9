//! Leases as a store has them: keys with values.

use crate::wire;
use std::sync::Arc;
use types::Subnets;

/// One key under `subnets/` as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The part of the key after `subnets/`.
    pub key: String,
    /// The bytes of the value.
    pub value: Arc<[u8]>,
    /// The revision at which the key was created.
    pub created: i64,
    /// The revision at which the key was last written: what a compare-and-swap compares.
    pub modified: i64,
    /// The store's lease that the key hangs on; 0 for none.
    pub lease: i64,
}

/// Every key at one revision.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Listing {
    /// The revision of the store at which the list was taken.
    pub revision: i64,
    /// The keys in order.
    pub entries: Vec<Entry>,
}

impl Entry {
    /// The subnets that the key names, when it is a lease's key.
    pub fn subnets(&self) -> Option<Subnets> {
        wire::parse_key(&self.key)
    }
}
