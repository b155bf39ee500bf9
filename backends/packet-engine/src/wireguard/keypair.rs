//! A session with its age and its owner, and the table in which a datagram's index finds it.

use arc_swap::ArcSwapOption;
use noise::Session;
use rand::TryRngCore;
use rand::rngs::OsRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use types::wireguard::PublicKey;
use zeroize::Zeroizing;

/// How long packets are sealed and opened in a session (REJECT_AFTER_TIME).
pub(super) const LASTS: Duration = Duration::from_secs(180);
/// The age at which the initiator of a session that sends in it asks for the next one (REKEY_AFTER_TIME).
const RENEWED: Duration = Duration::from_secs(120);
/// The age at which the initiator asks for the next one because it receives (REJECT_AFTER_TIME - KEEPALIVE_TIMEOUT - REKEY_TIMEOUT).
const RENEWED_BY_RECEIVER: Duration = Duration::from_secs(165);
/// The packets after which either asks for the next one (REKEY_AFTER_MESSAGES); fewer in the tests of this crate.
pub(super) const RENEWED_AFTER: u64 = if cfg!(test) { 1 << 12 } else { 1 << 60 };
/// Tries to find an index that nothing has. With a million sessions one in 4000 is taken.
const TRIES: usize = 64;
/// Lists of indices. Ten thousand peers have seven in each.
const BUCKETS: usize = 4096;

/// Random bytes of the kernel's. None if it has none to give.
pub(super) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).ok()?;
    Some(bytes)
}

/// A random private key, erased when it is dropped.
pub(super) fn random_key() -> Option<Zeroizing<[u8; noise::KEY]>> {
    random().map(Zeroizing::new)
}

/// A session, and what its owner knows of it.
pub(super) struct Keypair {
    pub(super) session: Session,
    /// The peer that it is shared with, and the peer's slot.
    pub(super) peer: PublicKey,
    pub(super) slot: u32,
    pub(super) born: Instant,
    initiator: bool,
    /// Whether the peer is known to have it. Until then nothing is sealed in it.
    confirmed: AtomicBool,
    /// Whether it is over before its time: nothing is sealed or opened from then on, even by a thread that still has it.
    ended: AtomicBool,
}

impl Keypair {
    pub(super) fn new(
        session: Session,
        peer: PublicKey,
        slot: u32,
        born: Instant,
        initiator: bool,
    ) -> Self {
        Self {
            session,
            peer,
            slot,
            born,
            initiator,
            // Its answer shows that the peer has it.
            confirmed: AtomicBool::new(initiator),
            ended: AtomicBool::new(false),
        }
    }

    /// Whether packets may be sealed and opened in it.
    #[inline]
    pub(super) fn lasts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.born) < LASTS && !self.ended.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Relaxed)
    }

    pub(super) fn confirm(&self) {
        self.confirmed.store(true, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether who sends in it has to ask for the next one.
    #[inline]
    pub(super) fn is_worn_by_sending(&self, now: Instant) -> bool {
        self.initiator && now.saturating_duration_since(self.born) >= RENEWED
            || self.session.sealed() > RENEWED_AFTER
    }

    /// Whether who receives in it has to ask for the next one.
    #[inline]
    pub(super) fn is_worn_by_receiving(&self, now: Instant) -> bool {
        self.initiator && now.saturating_duration_since(self.born) >= RENEWED_BY_RECEIVER
    }
}

/// What an index stands for.
#[derive(Clone)]
pub(super) enum Named {
    /// An initiation to the peer in a slot that waits for its answer.
    Initiation(u32),
    Session(Arc<Keypair>),
}

impl Named {
    pub(super) fn slot(&self) -> u32 {
        match self {
            Named::Initiation(slot) => *slot,
            Named::Session(keypair) => keypair.slot,
        }
    }
}

type Bucket = Vec<(u32, Named)>;

/// The indices that peers know, random for each session so that none tells whose another is. Reading waits for nobody.
pub(super) struct Indices {
    buckets: Box<[ArcSwapOption<Bucket>]>,
}

impl Default for Indices {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| ArcSwapOption::empty()).collect(),
        }
    }
}

impl Indices {
    fn bucket(&self, index: u32) -> Option<&ArcSwapOption<Bucket>> {
        self.buckets.get(index as usize % BUCKETS)
    }

    /// What an index stands for.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<Named> {
        let bucket = self.bucket(index)?.load();
        let (_, named) = bucket.as_ref()?.iter().find(|(own, _)| *own == index)?;
        Some(named.clone())
    }

    /// An index that nothing has, for an initiation to a peer or for an answer.
    pub(super) fn reserve(&self, slot: u32) -> Option<u32> {
        (0..TRIES).find_map(|_| {
            let index = u32::from_ne_bytes(random()?);
            let free = self.get(index).is_none();
            free.then(|| self.set(index, Some(&Named::Initiation(slot))))?;
            Some(index)
        })
    }

    /// Lets an index stand for something else, or for nothing.
    pub(super) fn set(&self, index: u32, named: Option<&Named>) {
        let Some(bucket) = self.bucket(index) else {
            return;
        };
        bucket.rcu(|before| {
            let others = before.iter().flat_map(|bucket| bucket.iter());
            let all: Bucket = others
                .filter(|(own, _)| *own != index)
                .cloned()
                .chain(named.map(|named| (index, named.clone())))
                .collect();
            (!all.is_empty()).then(|| Arc::new(all))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn index_stands_for_one_thing_until_it_is_taken_back() {
        let indices = Indices::default();
        let slots = 0..20_000;
        let reserved: Vec<u32> = slots
            .clone()
            .map(|slot| indices.reserve(slot).unwrap())
            .collect();
        assert_eq!(reserved.iter().collect::<BTreeSet<_>>().len(), 20_000);
        for (slot, index) in slots.zip(&reserved) {
            assert_eq!(indices.get(*index).unwrap().slot(), slot);
        }
        reserved
            .iter()
            .step_by(2)
            .for_each(|index| indices.set(*index, None));
        let left = reserved
            .iter()
            .filter(|index| indices.get(**index).is_some());
        assert_eq!(left.count(), 10_000);
        // Nobody who sees one index can tell which others are the same peer's.
        let near = reserved
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) < 1 << 16)
            .count();
        assert!(near < 20, "{near} follow each other");
    }
}
