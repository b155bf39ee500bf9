//! The handshakes and sessions of one peer, and the packets that wait for a session. Callers pass the current
//! time, on which each decision depends.

use crate::identity::Identity;
use crate::keypair::{Keypair, LASTS};
use crate::noise::{Initiated, KEY, NoiseError, PeerCookie, Remote, Stamp};
use packet_engine::drop_error::DropError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use types::wireguard::{PublicKey, Secret};

/// Maximum number of packets that wait for a session with one peer, as in the kernel.
const PARKED: usize = 128;
/// Minimum time between two initiations to one peer (REKEY_TIMEOUT). A random delay below [`JITTER`]
/// milliseconds keeps two nodes from repeatedly sending them at the same time.
const RETRY: Duration = Duration::from_secs(5);
const JITTER: u64 = 333;
/// After this time without a session the node stops sending initiations (REKEY_ATTEMPT_TIME).
const GIVE_UP: Duration = Duration::from_secs(90);
/// The protocol's stand-in for a missing preshared key.
const NONE: [u8; KEY] = [0; KEY];

/// The node's attempts to establish a session.
#[derive(Default)]
struct Attempts {
    /// The initiation that waits for its response, whether or not it is repeated.
    initiated: Option<Arc<Initiated>>,
    /// Whether the node repeats the initiation: not after a response to the peer's own. Otherwise two nodes
    /// with different preshared keys would trigger each other's initiations endlessly.
    repeats: bool,
    /// The earliest time of the next initiation, whatever became of the last one.
    again: Option<Instant>,
    /// Time of the first initiation of the current attempts.
    since: Option<Instant>,
}

/// At most three sessions under the current private key, as in the kernel. Packets in flight are still opened
/// in the previous session. Nothing is sealed in `next` until the peer has used it.
#[derive(Default)]
struct Sessions {
    previous: Option<Arc<Keypair>>,
    current: Option<Arc<Keypair>>,
    /// Created by this node's response; the peer has not confirmed it yet.
    next: Option<Arc<Keypair>>,
    /// Sessions under a former private key, in which threads still open packets but seal none.
    retired: Vec<Arc<Keypair>>,
}

impl Sessions {
    fn take(&mut self) -> Over {
        let Self { previous, current, next, retired } = std::mem::take(self);
        [previous, current, next].into_iter().flatten().chain(retired).collect()
    }
}

/// The handshakes and timers of a peer, which its lock protects.
pub(crate) struct Link {
    /// Takes precedence over the key in an old snapshot of a thread.
    identity: Option<Arc<Identity>>,
    pub(crate) preshared: Option<Secret>,
    /// Seconds between keepalives; zero disables them.
    pub(crate) keepalive: u16,
    /// Changes of this node's key or the preshared key. A handshake that was computed during a change is
    /// discarded.
    changes: u64,
    /// Derived from both keys on first use.
    remote: Option<Arc<Remote>>,
    attempts: Attempts,
    sessions: Sessions,
    /// The timestamps of the last initiations of this node and of the peer. They outlive keys and sessions,
    /// so that an old initiation is recognised as a copy.
    stamped: Option<Stamp>,
    seen: Option<Stamp>,
    pub(crate) peer_cookie: PeerCookie,
    /// Unencrypted, oldest first.
    pub(crate) parked: VecDeque<Vec<u8>>,
    /// Time of the last response to an initiation of the peer.
    pub(crate) answered: Option<Instant>,
    /// Time at which the node last rejected, after curve operations, a handshake message in the peer's name.
    pub(crate) refused: Option<Instant>,
    /// Time of the last attempt to send a persistent keepalive; `None` means that one is due at once.
    pub(crate) kept: Option<Instant>,
    /// Time of the last completed handshake.
    pub(crate) handshake: Option<SystemTime>,
}

/// Sessions that the device has to end.
pub(crate) type Over = Vec<Arc<Keypair>>;

/// Keys from which a handshake is computed without the peer's lock.
pub(crate) struct Draft {
    pub(crate) identity: Arc<Identity>,
    pub(crate) remote: Arc<Remote>,
    preshared: Option<Secret>,
    /// See [`Link::is_current`].
    pub(crate) changes: u64,
}

impl Draft {
    /// A key of zeros without a preshared key, as in the WireGuard paper.
    pub(crate) fn preshared(&self) -> &[u8; KEY] {
        self.preshared.as_ref().map_or(&NONE, Secret::bytes)
    }
}

impl Link {
    pub(crate) fn new(
        identity: Option<Arc<Identity>>,
        preshared: Option<Secret>,
        keepalive: u16,
    ) -> Self {
        Self {
            identity,
            preshared,
            keepalive,
            changes: 0,
            remote: None,
            attempts: Attempts::default(),
            sessions: Sessions::default(),
            stamped: None,
            seen: None,
            peer_cookie: PeerCookie::default(),
            parked: VecDeque::new(),
            answered: None,
            refused: None,
            kept: None,
            handshake: None,
        }
    }

    /// The keys for a handshake; `None` without a private key. The first call for a private key performs a
    /// curve operation.
    pub(crate) fn draft(&mut self, key: &PublicKey) -> Option<Draft> {
        let identity = Arc::clone(self.identity.as_ref()?);
        let remote = match &self.remote {
            Some(remote) => Arc::clone(remote),
            None => {
                let remote = Arc::new(Remote::new(&identity.keys, &key.0).ok()?);
                Arc::clone(self.remote.insert(remote))
            }
        };
        Some(Draft { identity, remote, preshared: self.preshared.clone(), changes: self.changes })
    }

    /// False once a key has changed.
    pub(crate) fn is_current(&self, draft: &Draft) -> bool {
        self.changes == draft.changes
    }

    /// Replaces or removes this node's private key. The current and the previous session then only open
    /// packets until they end. Returns the sessions to end, and the index of the waiting initiation.
    pub(crate) fn rekey(&mut self, identity: Option<Arc<Identity>>) -> (Over, Option<u32>) {
        self.identity = identity;
        self.remote = None;
        let mut over = std::mem::take(&mut self.sessions.retired);
        over.extend(self.sessions.next.take());
        self.sessions.retired = self.sessions.take();
        (over, self.renew())
    }

    /// Restarts handshakes after a change of keys, and returns the index of the waiting initiation.
    pub(crate) fn renew(&mut self) -> Option<u32> {
        self.changes += 1;
        let index = self.waits_for();
        self.attempts = Attempts::default();
        index
    }

    /// Makes a session the previous one, in which threads only open packets. The caller has to end the one
    /// that it replaced.
    fn supersede(&mut self, former: Option<Arc<Keypair>>) -> Option<Arc<Keypair>> {
        let former = former?;
        self.sessions.previous.replace(former)
    }

    /// The index of the initiation that waits for its response.
    pub(crate) fn waits_for(&self) -> Option<u32> {
        self.attempts.initiated.as_ref().map(|initiated| initiated.index())
    }

    /// The initiation with this index, if it still waits.
    pub(crate) fn initiated(&self, index: u32) -> Option<Arc<Initiated>> {
        self.attempts.initiated.clone().filter(|initiated| initiated.index() == index)
    }

    /// A timestamp later than any before, even if the clock was set back. So no peer takes the initiation for
    /// a copy.
    pub(crate) fn stamp(&mut self, clock: SystemTime) -> Stamp {
        let stamp = Stamp::after(self.stamped, clock);
        self.stamped = Some(stamp);
        stamp
    }

    /// Records the timestamp of an authentic initiation of the peer. [`NoiseError::Replayed`] if it is not
    /// later than the last one.
    pub(crate) fn see(&mut self, stamp: Stamp) -> Result<(), NoiseError> {
        if self.seen.is_some_and(|seen| stamp <= seen) {
            return Err(NoiseError::Replayed);
        }
        self.seen = Some(stamp);
        Ok(())
    }

    /// Records an initiation. Returns the index of the previous one, whose response the node no longer
    /// accepts.
    pub(crate) fn begun(&mut self, initiated: Initiated, now: Instant) -> Option<u32> {
        let before = self.waits_for();
        self.attempts.initiated = Some(Arc::new(initiated));
        self.try_again(now);
        before
    }

    pub(crate) fn try_again(&mut self, now: Instant) {
        let jitter = Duration::from_millis(rand::random_range(0..JITTER));
        self.attempts.repeats = true;
        self.attempts.again = Some(now + RETRY + jitter);
        self.attempts.since.get_or_insert(now);
    }

    /// Whether the node is trying to establish a session.
    pub(crate) fn tries(&self) -> bool {
        self.attempts.since.is_some()
    }

    /// Whether it repeats the initiation until the peer responds.
    pub(crate) fn repeats(&self) -> bool {
        self.attempts.repeats
    }

    pub(crate) fn may_begin(&self, now: Instant) -> bool {
        self.attempts.again.is_none_or(|again| again <= now)
    }

    /// The earliest time of the next initiation.
    pub(crate) fn again(&self) -> Option<Instant> {
        self.attempts.again
    }

    /// When the node stops sending initiations if no session results.
    pub(crate) fn tired_at(&self) -> Option<Instant> {
        self.attempts.since.map(|since| since + GIVE_UP)
    }

    /// Stops the attempts, and returns the index of the initiation that waits for its response.
    pub(crate) fn given_up(&mut self) -> Option<u32> {
        self.attempts.repeats = false;
        self.attempts.since = None;
        self.forget_initiation()
    }

    /// Erases the keys of an initiation whose response the node no longer accepts, and returns its index.
    pub(crate) fn forget_initiation(&mut self) -> Option<u32> {
        let index = self.waits_for();
        self.attempts.initiated = None;
        index
    }

    /// Stores the session that this node's response created, and hands back the one it replaces. That one was
    /// unconfirmed, and the peer has sent a newer initiation since. The current and the previous session
    /// remain valid.
    pub(crate) fn answer_with(&mut self, keypair: Arc<Keypair>) -> Option<Arc<Keypair>> {
        self.attempts.repeats = false;
        self.sessions.next.replace(keypair)
    }

    /// Stores the session that the peer's response created. The caller has to end the previous session that
    /// it replaces.
    pub(crate) fn complete_with(&mut self, keypair: Arc<Keypair>) -> Option<Arc<Keypair>> {
        self.attempts.initiated = None;
        self.shaken();
        let former = self.sessions.current.replace(keypair);
        self.supersede(former)
    }

    /// Confirms the session that this node's response created, because the peer has used it. `None` if that
    /// was known, else the replaced previous session.
    pub(crate) fn confirm(&mut self, keypair: &Arc<Keypair>) -> Option<Option<Arc<Keypair>>> {
        let next = self.sessions.next.take_if(|next| Arc::ptr_eq(next, keypair))?;
        next.confirm();
        self.shaken();
        let former = self.sessions.current.replace(next);
        Some(self.supersede(former))
    }

    fn shaken(&mut self) {
        self.handshake = Some(SystemTime::now());
        self.attempts.repeats = false;
        self.attempts.since = None;
    }

    /// The session in which threads seal packets.
    pub(crate) fn sending(&self, now: Instant) -> Option<Arc<Keypair>> {
        self.sessions.current.clone().filter(|current| current.lasts(now) && current.is_confirmed())
    }

    pub(crate) fn end_sessions(&mut self, now: Instant) -> Over {
        let Sessions { previous, current, next, retired } = &mut self.sessions;
        let is_over = |keypair: &mut Arc<Keypair>| !keypair.lasts(now);
        let mut over: Over = retired.extract_if(.., is_over).collect();
        over.extend(
            [previous, current, next].into_iter().filter_map(|session| session.take_if(is_over)),
        );
        over
    }

    pub(crate) fn session_ends(&self) -> Option<Instant> {
        let Sessions { previous, current, next, retired } = &self.sessions;
        [previous, current, next]
            .into_iter()
            .flatten()
            .chain(retired)
            .map(|keypair| keypair.born + LASTS)
            .min()
    }

    /// Queues a packet until a session exists. A full queue gives up its oldest packet.
    pub(crate) fn park(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if self.parked.is_empty() && !self.attempts.repeats {
            // Attempts before this packet, perhaps long ago, must not shorten the time until it is given up.
            self.attempts.since = None;
        }
        self.parked.push_back(plain.to_vec());
        if self.parked.len() > PARKED { self.parked.pop_front() } else { None }
    }

    /// Ends everything. Returns the sessions, and the index of the waiting initiation.
    pub(crate) fn remove(&mut self) -> (Over, Option<u32>) {
        (self.sessions.take(), self.renew())
    }
}

#[cold]
pub(crate) fn drop_reason(error: NoiseError) -> DropError {
    match error {
        NoiseError::Malformed => DropError::Malformed,
        NoiseError::Tag | NoiseError::WeakKey => DropError::BadTag,
        NoiseError::Stranger => DropError::UnknownPeer,
        NoiseError::Replayed | NoiseError::Exhausted => DropError::Replayed,
        NoiseError::Unasked => DropError::NoSession,
    }
}

#[cfg(test)]
mod tests;
