//! Stores the authentic initiations of peers, so that copies are dropped before any curve operation.

use std::hash::{BuildHasher, RandomState};

/// Maximum number of remembered initiations. A new one replaces the older one in its slot, whose next copy
/// costs curve operations once more.
const PLACES: usize = 4096;
/// The sender's ephemeral key in an initiation. No two initiations of a peer share one, and an initiation
/// with a changed key is rejected.
const EPHEMERAL: std::ops::Range<usize> = 8..40;

/// Only peers can add initiations to this set.
pub(crate) struct Copies {
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

    /// Whether it has the ephemeral key of an authentic initiation.
    pub(crate) fn has(&self, initiation: &[u8]) -> bool {
        self.hash(initiation).is_some_and(|(hash, at)| self.seen.get(at) == Some(&hash))
    }

    /// Remembers an authentic initiation.
    pub(crate) fn remember(&mut self, initiation: &[u8]) {
        if let Some((hash, at)) = self.hash(initiation)
            && let Some(place) = self.seen.get_mut(at)
        {
            *place = hash;
        }
    }
}
