//! Parses entries of the store as leases. Unreadable ones are counted, and each is logged once.

use super::registry::{Entry, Listing};
use super::view::Item;
use crate::json::excerpt;
use crate::lease::Lease;
use crate::manager::Counters;
use crate::wire;
use std::collections::BTreeSet;
use types::{Problem, Subnets};

/// An unreadable entry is counted, and logged once.
pub(crate) fn read(counters: &Counters, entry: Entry) -> Option<Result<Lease, Subnets>> {
    let key = entry.key.clone();
    let Some(subnets) = entry.subnets() else {
        let text = "the key names no subnet in canonical form (such as 10.5.34.0-24)";
        tell(counters, &key, &Problem::new("lease-key-unreadable", text));
        return None;
    };
    match wire::parse_value(&entry.value) {
        Ok(_) => {
            counters.readable(&key);
            Item::of(entry).and_then(|item| item.lease()).map(Ok)
        }
        Err(reason) => {
            tell(counters, &key, &reason);
            Some(Err(subnets))
        }
    }
}

/// Counts a key whose file is unreadable. `None` if it does not belong to a lease.
#[cfg(feature = "dir")]
pub(crate) fn unreadable(counters: &Counters, key: &str, why: &Problem) -> Option<Subnets> {
    tell(counters, key, why);
    wire::parse_key(key)
}

fn tell(counters: &Counters, key: &str, why: &Problem) {
    if counters.unreadable(key, why.clone()) {
        tracing::warn!(code = %why.code, key = %excerpt(key), error = %why, "cannot read a lease in the store; skipping the lease");
    }
}

/// The leases, and the subnets of keys with unreadable values.
pub(crate) fn list(counters: &Counters, listing: Listing) -> (Vec<Lease>, BTreeSet<Subnets>) {
    let mut leases = Vec::with_capacity(listing.entries.len());
    let mut unreadable = BTreeSet::new();
    counters.only(&listing.entries.iter().map(|entry| entry.key.clone()).collect());
    for entry in listing.entries {
        match read(counters, entry) {
            Some(Ok(lease)) => leases.push(lease),
            Some(Err(subnets)) => {
                unreadable.insert(subnets);
            }
            None => {}
        }
    }
    (leases, unreadable)
}
