//! Sessions with their age and peer, and the table that maps the index in a datagram to a session.

use crate::noise::{KEY, Session};
use arc_swap::ArcSwapOption;
use rand::TryRngCore;
use rand::rngs::OsRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use types::wireguard::PublicKey;
use zeroize::Zeroizing;

/// Packets are sealed and opened in a session for this time (REJECT_AFTER_TIME).
pub(crate) const LASTS: Duration = Duration::from_secs(180);
/// Session age from which an initiator that sends packets requests the next session (REKEY_AFTER_TIME).
const RENEWED: Duration = Duration::from_secs(120);
/// The same for an initiator that receives packets (REJECT_AFTER_TIME - KEEPALIVE_TIMEOUT - REKEY_TIMEOUT).
const RENEWED_BY_RECEIVER: Duration = Duration::from_secs(165);
/// After this many sealed packets, either side requests the next session (REKEY_AFTER_MESSAGES). The tests of
/// this crate use a lower limit.
pub(crate) const RENEWED_AFTER: u64 = if cfg!(test) { 1 << 12 } else { 1 << 60 };
/// Maximum number of attempts to find an unused index. With a million sessions, one index in 4000 is in use.
const TRIES: usize = 64;
/// Lists over which [`Indices`] spreads the indices. With ten thousand peers, each has about seven.
const BUCKETS: usize = 4096;

/// Random bytes from the kernel; `None` if it provides none.
pub(crate) fn random_bytes<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).ok()?;
    Some(bytes)
}

/// In memory that is erased on drop.
pub(crate) fn random_key() -> Option<Zeroizing<[u8; KEY]>> {
    random_bytes().map(Zeroizing::new)
}

/// A session with its peer, its age and its state.
pub(crate) struct Keypair {
    pub(crate) session: Session,
    /// The peer, and its slot.
    pub(crate) peer: PublicKey,
    pub(crate) slot: u32,
    pub(crate) born: Instant,
    initiator: bool,
    /// Whether this node knows that the peer has the session. Until then nothing is sealed in it.
    confirmed: AtomicBool,
    /// Whether the session ended before [`LASTS`]. Threads that still hold it then neither seal nor open
    /// packets in it.
    ended: AtomicBool,
}

impl Keypair {
    pub(crate) fn new(
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
            // If we initiated the handshake, the peer's response shows that it has the session.
            confirmed: AtomicBool::new(initiator),
            ended: AtomicBool::new(false),
        }
    }

    /// Whether threads may seal and open packets in it.
    #[inline]
    pub(crate) fn lasts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.born) < LASTS && !self.ended.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Relaxed)
    }

    pub(crate) fn confirm(&self) {
        self.confirmed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether this node has to request the next session when it sends packets in this one.
    #[inline]
    pub(crate) fn is_worn_by_sending(&self, now: Instant) -> bool {
        self.initiator && now.saturating_duration_since(self.born) >= RENEWED
            || self.session.sealed() > RENEWED_AFTER
    }

    /// The same when it receives packets.
    #[inline]
    pub(crate) fn is_worn_by_receiving(&self, now: Instant) -> bool {
        self.initiator && now.saturating_duration_since(self.born) >= RENEWED_BY_RECEIVER
    }
}

/// What an index refers to.
#[derive(Clone)]
pub(crate) enum Named {
    /// An unanswered initiation to the peer in this slot.
    Initiation(u32),
    Session(Arc<Keypair>),
}

impl Named {
    pub(crate) fn slot(&self) -> u32 {
        match self {
            Named::Initiation(slot) => *slot,
            Named::Session(keypair) => keypair.slot,
        }
    }
}

type Bucket = Vec<(u32, Named)>;

/// The indices by which messages of peers refer to this node's sessions and initiations. They are random, so
/// that one does not reveal the others of the same peer. Lookups take no lock.
pub(crate) struct Indices {
    buckets: Box<[ArcSwapOption<Bucket>]>,
}

impl Default for Indices {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| ArcSwapOption::empty()).collect() }
    }
}

impl Indices {
    fn bucket(&self, index: u32) -> Option<&ArcSwapOption<Bucket>> {
        self.buckets.get(index as usize % BUCKETS)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<Named> {
        let bucket = self.bucket(index)?.load();
        let (_, named) = bucket.as_ref()?.iter().find(|(own, _)| *own == index)?;
        Some(named.clone())
    }

    /// Reserves an index, for an initiation to a peer or for a response. `None` if it finds no unused one.
    pub(crate) fn reserve(&self, slot: u32) -> Option<u32> {
        (0..TRIES).find_map(|_| {
            let index = u32::from_ne_bytes(random_bytes()?);
            let free = self.get(index).is_none();
            free.then(|| self.set(index, Some(&Named::Initiation(slot))))?;
            Some(index)
        })
    }

    /// `None` frees the index.
    pub(crate) fn set(&self, index: u32, named: Option<&Named>) {
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
        let reserved: Vec<u32> = slots.clone().map(|slot| indices.reserve(slot).unwrap()).collect();
        assert_eq!(reserved.iter().collect::<BTreeSet<_>>().len(), 20_000);
        for (slot, index) in slots.zip(&reserved) {
            assert_eq!(indices.get(*index).unwrap().slot(), slot);
        }
        reserved.iter().step_by(2).for_each(|index| indices.set(*index, None));
        let left = reserved.iter().filter(|index| indices.get(**index).is_some());
        assert_eq!(left.count(), 10_000);
        // An observer of one index must not be able to find other indices of the same peer.
        let near = reserved.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 1 << 16).count();
        assert!(near < 20, "{near} follow each other");
    }
}
