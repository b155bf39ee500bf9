//! The handshakes and sessions of one peer, and the packets that wait for a session. Callers pass the current time, on which each decision depends.

use super::identity::Identity;
use super::keypair::{Keypair, LASTS};
use crate::reason::Reason;
use noise::{Initiated, Jar, NoiseError, Remote, Stamp};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use types::wireguard::{PublicKey, Secret};

/// Maximum number of packets that wait for a session with one peer, as in the kernel.
const PARKED: usize = 128;
/// Minimum time between two initiations to one peer (REKEY_TIMEOUT). A random delay below [`JITTER`]
/// milliseconds prevents two nodes from repeatedly sending initiations at the same time.
const RETRY: Duration = Duration::from_secs(5);
const JITTER: u64 = 333;
/// Time after which the node stops sending initiations if no session results (REKEY_ATTEMPT_TIME).
const GIVE_UP: Duration = Duration::from_secs(90);
/// Key whose bytes are all zero, which the protocol uses without a preshared key.
const NONE: [u8; noise::KEY] = [0; noise::KEY];

/// The node's attempts to establish a session.
#[derive(Default)]
struct Attempts {
    /// The initiation that waits for its response, whether or not the node repeats the initiation.
    initiated: Option<Arc<Initiated>>,
    /// Whether the node repeats the initiation. After the node responds to the peer's own initiation, the node no longer repeats its initiation.
    /// If nodes repeated an initiation after a response, two nodes with different preshared keys would endlessly trigger each
    /// other's initiations.
    repeats: bool,
    /// The earliest time of the next initiation, regardless of the result of the last initiation.
    again: Option<Instant>,
    /// Time of the first initiation of the current attempts to establish a session.
    since: Option<Instant>,
}

/// The sessions with a peer: at most three under the current private key, as in the kernel. Threads still open packets in flight in the
/// previous session. Threads seal no packets in `next` until the peer has used that session.
#[derive(Default)]
struct Sessions {
    previous: Option<Arc<Keypair>>,
    current: Option<Arc<Keypair>>,
    /// The session that this node's response created, until the peer confirms the session.
    next: Option<Arc<Keypair>>,
    /// Sessions under this node's former private key, in which threads still open packets but seal none.
    retired: Vec<Arc<Keypair>>,
}

impl Sessions {
    /// Removes and returns all sessions.
    fn take(&mut self) -> Over {
        let Self { previous, current, next, retired } = std::mem::take(self);
        [previous, current, next].into_iter().flatten().chain(retired).collect()
    }
}

/// The handshakes and timers of a peer, which the peer's lock protects.
pub(super) struct Link {
    /// This node's key for handshakes, which takes precedence over the key in an old snapshot of a thread.
    identity: Option<Arc<Identity>>,
    pub(super) preshared: Option<Secret>,
    /// Seconds between keepalives; zero disables keepalives.
    pub(super) keepalive: u16,
    /// Number of changes of this node's key or the preshared key. The node discards the result of a handshake if a key changed during its computation.
    changes: u64,
    /// Data that the node derives from its own key and the peer's key on first use.
    remote: Option<Arc<Remote>>,
    attempts: Attempts,
    sessions: Sessions,
    /// The timestamps of the last initiations of this node and of the peer. The timestamps outlive keys and sessions, so that the node recognises an
    /// old initiation as a copy.
    stamped: Option<Stamp>,
    seen: Option<Stamp>,
    pub(super) jar: Jar,
    /// Unencrypted packets that wait for a session, oldest first.
    pub(super) parked: VecDeque<Vec<u8>>,
    /// Time of the last response to an initiation of the peer.
    pub(super) answered: Option<Instant>,
    /// Time at which the node last rejected, after curve operations, a handshake message whose sender claimed to be the peer.
    pub(super) refused: Option<Instant>,
    /// Time of the last attempt to send a persistent keepalive. `None` means that a keepalive is due at once.
    pub(super) kept: Option<Instant>,
    /// Time of the last completed handshake.
    pub(super) handshake: Option<SystemTime>,
}

/// Sessions that the device has to end.
pub(super) type Over = Vec<Arc<Keypair>>;

/// Keys from which the handshake thread computes a handshake without holding the peer's lock.
pub(super) struct Draft {
    pub(super) identity: Arc<Identity>,
    pub(super) remote: Arc<Remote>,
    preshared: Option<Secret>,
    /// See [`Link::is_current`].
    pub(super) changes: u64,
}

impl Draft {
    /// Returns the preshared key, or a key of zeros without a preshared key, as in the WireGuard paper.
    pub(super) fn preshared(&self) -> &[u8; noise::KEY] {
        self.preshared.as_ref().map_or(&NONE, Secret::bytes)
    }
}

impl Link {
    pub(super) fn new(
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
            jar: Jar::default(),
            parked: VecDeque::new(),
            answered: None,
            refused: None,
            kept: None,
            handshake: None,
        }
    }

    /// Returns the keys for a handshake with the peer, or `None` if this node has no private key. The first call for a private key performs a curve operation.
    pub(super) fn draft(&mut self, key: &PublicKey) -> Option<Draft> {
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

    /// Returns whether the keys for a handshake are still the current keys.
    pub(super) fn is_current(&self, draft: &Draft) -> bool {
        self.changes == draft.changes
    }

    /// Replaces the private key of this node, or removes the private key. Threads still open packets in the current and the previous session
    /// until the sessions end, but seal no packets. Returns the sessions that the device has to end, and the
    /// index of the waiting initiation, if any.
    pub(super) fn rekey(&mut self, identity: Option<Arc<Identity>>) -> (Over, Option<u32>) {
        self.identity = identity;
        self.remote = None;
        let mut over = std::mem::take(&mut self.sessions.retired);
        over.extend(self.sessions.next.take());
        self.sessions.retired = self.sessions.take();
        (over, self.renew())
    }

    /// Restarts handshakes after a change of keys. Returns the index of the waiting initiation, if any.
    pub(super) fn renew(&mut self) -> Option<u32> {
        self.changes += 1;
        let index = self.waits_for();
        self.attempts = Attempts::default();
        index
    }

    /// Makes a session the previous session, in which threads only open packets. Returns the replaced previous session, which the caller has to end.
    fn supersede(&mut self, former: Option<Arc<Keypair>>) -> Option<Arc<Keypair>> {
        let former = former?;
        self.sessions.previous.replace(former)
    }

    /// Returns the index of the initiation that waits for its response.
    pub(super) fn waits_for(&self) -> Option<u32> {
        self.attempts.initiated.as_ref().map(|initiated| initiated.index())
    }

    /// Returns the initiation with this index, if the initiation still waits for a response.
    pub(super) fn initiated(&self, index: u32) -> Option<Arc<Initiated>> {
        self.attempts.initiated.clone().filter(|initiated| initiated.index() == index)
    }

    /// Returns the timestamp for the next initiation. The timestamp is later than any earlier timestamp, even if the
    /// clock was set back, so that no peer treats the initiation as a copy.
    pub(super) fn stamp(&mut self, clock: SystemTime) -> Stamp {
        let stamp = Stamp::after(self.stamped, clock);
        self.stamped = Some(stamp);
        stamp
    }

    /// Checks and records the timestamp of an authentic initiation of the peer.
    ///
    /// # Errors
    /// Returns [`NoiseError::Replayed`] if the timestamp is not later than the last timestamp.
    pub(super) fn see(&mut self, stamp: Stamp) -> Result<(), NoiseError> {
        if self.seen.is_some_and(|seen| stamp <= seen) {
            return Err(NoiseError::Replayed);
        }
        self.seen = Some(stamp);
        Ok(())
    }

    /// Records an initiation, and the earliest time of the next initiation. Returns the index of the previous initiation, whose response the node no
    /// longer accepts.
    pub(super) fn begun(&mut self, initiated: Initiated, now: Instant) -> Option<u32> {
        let before = self.waits_for();
        self.attempts.initiated = Some(Arc::new(initiated));
        self.try_again(now);
        before
    }

    /// Records the earliest time of the next initiation.
    pub(super) fn try_again(&mut self, now: Instant) {
        let jitter = Duration::from_millis(rand::random_range(0..JITTER));
        self.attempts.repeats = true;
        self.attempts.again = Some(now + RETRY + jitter);
        self.attempts.since.get_or_insert(now);
    }

    /// Returns whether the node is trying to establish a session.
    pub(super) fn tries(&self) -> bool {
        self.attempts.since.is_some()
    }

    /// Returns whether the node repeats the initiation until the peer responds.
    pub(super) fn repeats(&self) -> bool {
        self.attempts.repeats
    }

    /// Returns whether the minimum time between two initiations has passed.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        self.attempts.again.is_none_or(|again| again <= now)
    }

    /// Returns the earliest time of the next initiation.
    pub(super) fn again(&self) -> Option<Instant> {
        self.attempts.again
    }

    /// Returns the time at which the node stops sending initiations if no session results.
    pub(super) fn tired_at(&self) -> Option<Instant> {
        self.attempts.since.map(|since| since + GIVE_UP)
    }

    /// Stops the attempts to establish a session. Returns the index of the initiation that waits for its response, if any.
    pub(super) fn given_up(&mut self) -> Option<u32> {
        self.attempts.repeats = false;
        self.attempts.since = None;
        self.forget_initiation()
    }

    /// Erases the keys of an initiation whose response the node no longer accepts. Returns the index of the initiation.
    pub(super) fn forget_initiation(&mut self) -> Option<u32> {
        let index = self.waits_for();
        self.attempts.initiated = None;
        index
    }

    /// Stores the session that this node's response to the peer's initiation created. The new session replaces a
    /// session that the peer has not confirmed, because the peer has sent a newer initiation.
    /// The current and the previous session remain valid. Returns the replaced session.
    pub(super) fn answer_with(&mut self, keypair: Arc<Keypair>) -> Option<Arc<Keypair>> {
        self.attempts.repeats = false;
        self.sessions.next.replace(keypair)
    }

    /// Stores the session that the peer's response to this node's initiation created. Returns the replaced previous session, which the caller has to end.
    pub(super) fn complete_with(&mut self, keypair: Arc<Keypair>) -> Option<Arc<Keypair>> {
        self.attempts.initiated = None;
        self.shaken();
        let former = self.sessions.current.replace(keypair);
        self.supersede(former)
    }

    /// Confirms the session that this node's response created, because the peer has used the session. Returns `None`
    /// if the session was already confirmed, and otherwise the replaced previous session, if any.
    pub(super) fn confirm(&mut self, keypair: &Arc<Keypair>) -> Option<Option<Arc<Keypair>>> {
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

    /// Returns the session in which threads seal packets.
    pub(super) fn sending(&self, now: Instant) -> Option<Arc<Keypair>> {
        self.sessions.current.clone().filter(|current| current.lasts(now) && current.is_confirmed())
    }

    /// Removes and returns the sessions that have expired.
    pub(super) fn end_sessions(&mut self, now: Instant) -> Over {
        let Sessions { previous, current, next, retired } = &mut self.sessions;
        let is_over = |keypair: &mut Arc<Keypair>| !keypair.lasts(now);
        let mut over: Over = retired.extract_if(.., is_over).collect();
        over.extend(
            [previous, current, next].into_iter().filter_map(|session| session.take_if(is_over)),
        );
        over
    }

    /// Returns the earliest time at which a session with the peer expires.
    pub(super) fn session_ends(&self) -> Option<Instant> {
        let Sessions { previous, current, next, retired } = &self.sessions;
        [previous, current, next]
            .into_iter()
            .flatten()
            .chain(retired)
            .map(|keypair| keypair.born + LASTS)
            .min()
    }

    /// Queues a packet until a session exists. If the queue is full, removes and returns the oldest waiting packet.
    pub(super) fn park(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if self.parked.is_empty() && !self.attempts.repeats {
            // Attempts before this packet, perhaps long ago, must not shorten the time until it is given up.
            self.attempts.since = None;
        }
        self.parked.push_back(plain.to_vec());
        if self.parked.len() > PARKED { self.parked.pop_front() } else { None }
    }

    /// Ends all sessions and handshakes with the peer. Returns the sessions, and the index of the waiting initiation, if any.
    pub(super) fn remove(&mut self) -> (Over, Option<u32>) {
        (self.sessions.take(), self.renew())
    }
}

/// Returns the reason to drop a message that the crate `noise` rejected.
#[cold]
pub(super) fn reason(error: NoiseError) -> Reason {
    match error {
        NoiseError::Malformed => Reason::Malformed,
        NoiseError::Tag | NoiseError::WeakKey => Reason::BadTag,
        NoiseError::Stranger => Reason::UnknownPeer,
        NoiseError::Replayed | NoiseError::Exhausted => Reason::Replayed,
        NoiseError::Unasked => Reason::NoSession,
    }
}

#[cfg(test)]
mod tests;
