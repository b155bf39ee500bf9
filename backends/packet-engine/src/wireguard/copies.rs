//! Stores the authentic initiations of peers, so that the node drops copies before any curve operation.

use std::hash::{BuildHasher, RandomState};

/// The maximum number of remembered initiations. A new initiation replaces an older initiation in the same slot of
/// the table. The next copy of the replaced initiation costs curve operations once more.
const PLACES: usize = 4096;
/// Byte range of the sender's ephemeral key in an initiation. The node rejects an initiation whose ephemeral key an
/// attacker changed. No two initiations of a peer have the same ephemeral key.
const EPHEMERAL: std::ops::Range<usize> = 8..40;

/// The authentic initiations. Only peers can add initiations to this set.
pub(super) struct Copies {
    keys: RandomState,
    seen: Box<[u64]>,
}

impl Default for Copies {
    fn default() -> Self {
        Self { keys: RandomState::new(), seen: vec![0; PLACES].into() }
    }
}

impl Copies {
    fn hash(&self, initiation: &[u8]) -> Option<(u64, usize)> {
        let hash = self.keys.hash_one(initiation.get(EPHEMERAL)?);
        Some((hash, hash as usize % PLACES))
    }

    /// Returns whether an initiation has the ephemeral key of an authentic initiation.
    pub(super) fn has(&self, initiation: &[u8]) -> bool {
        self.hash(initiation).is_some_and(|(hash, at)| self.seen.get(at) == Some(&hash))
    }

    /// Remembers an authentic initiation.
    pub(super) fn remember(&mut self, initiation: &[u8]) {
        if let Some((hash, at)) = self.hash(initiation)
            && let Some(place) = self.seen.get_mut(at)
        {
            *place = hash;
        }
    }
}
