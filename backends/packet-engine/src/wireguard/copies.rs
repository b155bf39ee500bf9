//! Which initiations peers made: a copy of one is dropped before anything is computed for it.

use std::hash::{BuildHasher, RandomState};

/// Initiations that are remembered. A place is another's when that has the same hash, and the first copy afterwards is computed once more.
const PLACES: usize = 4096;
/// Where the sender's ephemeral key is. Nobody can change it and have the rest accepted, and no two initiations of a peer have the same.
const EPHEMERAL: std::ops::Range<usize> = 8..40;

/// The initiations that were authentic. Nobody but peers can fill it.
pub(super) struct Copies {
    keys: RandomState,
    seen: Box<[u64]>,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            keys: RandomState::new(),
            seen: vec![0; PLACES].into(),
        }
    }
}

impl Copies {
    fn hash(&self, initiation: &[u8]) -> Option<(u64, usize)> {
        let hash = self.keys.hash_one(initiation.get(EPHEMERAL)?);
        Some((hash, hash as usize % PLACES))
    }

    /// Whether an initiation has the ephemeral key of one that was authentic.
    pub(super) fn has(&self, initiation: &[u8]) -> bool {
        self.hash(initiation)
            .is_some_and(|(hash, at)| self.seen.get(at) == Some(&hash))
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
