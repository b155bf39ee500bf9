//! The handshakes and sessions of one peer, and what waits for a session. Time and random bytes are arguments.

use super::identity::Identity;
use super::keypair::{Keypair, LASTS};
use crate::reason::Reason;
use noise::{Initiated, Jar, Refused, Remote, Stamp};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use types::wireguard::{PublicKey, Secret};

/// The most packets that wait for a session with one peer, as in the kernel.
const PARKED: usize = 128;
/// Initiations to one peer are at least this far apart (REKEY_TIMEOUT), and a little more so that two nodes do not keep step.
const RETRY: Duration = Duration::from_secs(5);
const JITTER: u64 = 333;
/// How long initiations are sent that lead to no session (REKEY_ATTEMPT_TIME).
const GIVE_UP: Duration = Duration::from_secs(90);
/// No preshared key.
const NONE: [u8; noise::KEY] = [0; noise::KEY];

/// Our attempts at a session.
#[derive(Default)]
struct Attempts {
    /// The initiation that waits for its answer, whether or not it is repeated.
    initiated: Option<Arc<Initiated>>,
    /// Whether it is repeated. An answer to the peer's own initiation ends that: with different preshared keys two nodes would provoke each other without end.
    repeats: bool,
    /// The earliest time of the next, whatever becomes of the last.
    again: Option<Instant>,
    /// Since when they lead to no session.
    since: Option<Instant>,
}

/// At most three sessions, as in the kernel. The previous one still opens packets in flight; nothing is sealed in `next` until the peer has used it.
#[derive(Default)]
struct Sessions {
    previous: Option<Arc<Keypair>>,
    current: Option<Arc<Keypair>>,
    /// We answered; the peer has not confirmed it.
    next: Option<Arc<Keypair>>,
    /// Those under our former private key: what comes in them opens.
    retired: Vec<Arc<Keypair>>,
}

impl Sessions {
    /// All of them.
    fn take(&mut self) -> Over {
        let Self {
            previous,
            current,
            next,
            retired,
        } = std::mem::take(self);
        [previous, current, next]
            .into_iter()
            .flatten()
            .chain(retired)
            .collect()
    }
}

/// What a peer's handshakes and timers need, behind its lock.
pub(super) struct Link {
    /// Our key, with which handshakes are made. It counts, not that of a snapshot that a thread still has.
    identity: Option<Arc<Identity>>,
    pub(super) preshared: Option<Secret>,
    /// Seconds between keepalives; zero for none.
    pub(super) keepalive: u16,
    /// How often our key or the preshared one was changed: a handshake that was computed meanwhile does not count.
    changes: u64,
    /// What follows from our key and the peer's. Made when it is needed first.
    remote: Option<Arc<Remote>>,
    attempts: Attempts,
    sessions: Sessions,
    /// The times in our last initiation and in the peer's. They outlive keys and sessions: an older one is a copy.
    stamped: Option<Stamp>,
    seen: Option<Stamp>,
    pub(super) jar: Jar,
    /// Plain packets that wait for a session, oldest first.
    pub(super) parked: VecDeque<Vec<u8>>,
    /// When an initiation of the peer was answered last.
    pub(super) answered: Option<Instant>,
    /// When a handshake message in its name was refused last, after curve operations.
    pub(super) refused: Option<Instant>,
    /// When the last persistent keepalive was due. None: one is due at once.
    pub(super) kept: Option<Instant>,
    /// When a handshake was completed last.
    pub(super) handshake: Option<SystemTime>,
}

/// Sessions that are over.
pub(super) type Over = Vec<Arc<Keypair>>;

/// What a handshake is computed from, without the lock.
pub(super) struct Draft {
    pub(super) identity: Arc<Identity>,
    pub(super) remote: Arc<Remote>,
    preshared: Option<Secret>,
    /// See [`Link::is_current`].
    pub(super) changes: u64,
}

impl Draft {
    /// The preshared key; zeros for none, as in the paper.
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

    /// What a handshake with the peer is computed from. None without a key of ours. The first time it takes a curve operation.
    pub(super) fn draft(&mut self, key: &PublicKey) -> Option<Draft> {
        let identity = Arc::clone(self.identity.as_ref()?);
        let remote = match &self.remote {
            Some(remote) => Arc::clone(remote),
            None => {
                let remote = Arc::new(Remote::new(&identity.keys, &key.0).ok()?);
                Arc::clone(self.remote.insert(remote))
            }
        };
        Some(Draft {
            identity,
            remote,
            preshared: self.preshared.clone(),
            changes: self.changes,
        })
    }

    /// Whether what was computed from a draft still counts.
    pub(super) fn is_current(&self, draft: &Draft) -> bool {
        self.changes == draft.changes
    }

    /// Takes the identity of a new private key. The present session opens packets until it ends, and nothing is sealed in it. Returns the sessions that are
    /// over, and the index of an initiation that waits.
    pub(super) fn rekey(&mut self, identity: Option<Arc<Identity>>) -> (Over, Option<u32>) {
        self.identity = identity;
        self.remote = None;
        let mut over = std::mem::take(&mut self.sessions.retired);
        over.extend(self.sessions.next.take());
        self.sessions.retired = self.sessions.take();
        (over, self.renew())
    }

    /// The keys changed: handshakes begin anew. Returns the index of an initiation that waits.
    pub(super) fn renew(&mut self) -> Option<u32> {
        self.changes += 1;
        let index = self.waits_for();
        self.attempts = Attempts::default();
        index
    }

    /// Has a session open only, from now on. Returns the one that did so far.
    fn supersede(&mut self, former: Option<Arc<Keypair>>) -> Option<Arc<Keypair>> {
        let former = former?;
        self.sessions.previous.replace(former)
    }

    /// The index of the initiation that waits for its answer.
    pub(super) fn waits_for(&self) -> Option<u32> {
        self.attempts
            .initiated
            .as_ref()
            .map(|initiated| initiated.index())
    }

    /// The initiation of this index, if it waits for its answer.
    pub(super) fn initiated(&self, index: u32) -> Option<Arc<Initiated>> {
        self.attempts
            .initiated
            .clone()
            .filter(|initiated| initiated.index() == index)
    }

    /// The time for the next initiation: the clock's, and later than that of any before, so that no peer takes it for a copy.
    pub(super) fn stamp(&mut self, clock: SystemTime) -> Stamp {
        let stamp = Stamp::after(self.stamped, clock);
        self.stamped = Some(stamp);
        stamp
    }

    /// Takes the time in an authentic initiation of the peer.
    ///
    /// # Errors
    /// It is no later than that of one before.
    pub(super) fn see(&mut self, stamp: Stamp) -> Result<(), Refused> {
        if self.seen.is_some_and(|seen| stamp <= seen) {
            return Err(Refused::Replayed);
        }
        self.seen = Some(stamp);
        Ok(())
    }

    /// Notes an initiation, and when the next one may be. Returns the index of the one before, which nothing answers any more.
    pub(super) fn begun(&mut self, initiated: Initiated, now: Instant) -> Option<u32> {
        let before = self.waits_for();
        self.attempts.initiated = Some(Arc::new(initiated));
        self.try_again(now);
        before
    }

    /// Notes when the next initiation may be.
    pub(super) fn try_again(&mut self, now: Instant) {
        let jitter = Duration::from_millis(rand::random_range(0..JITTER));
        self.attempts.repeats = true;
        self.attempts.again = Some(now + RETRY + jitter);
        self.attempts.since.get_or_insert(now);
    }

    /// Whether initiations were sent without a session coming of them so far.
    pub(super) fn tries(&self) -> bool {
        self.attempts.since.is_some()
    }

    /// Whether an initiation is repeated until it is answered.
    pub(super) fn repeats(&self) -> bool {
        self.attempts.repeats
    }

    /// Whether an initiation may be sent: the last was long enough ago.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        self.attempts.again.is_none_or(|again| again <= now)
    }

    /// When an initiation may be sent.
    pub(super) fn again(&self) -> Option<Instant> {
        self.attempts.again
    }

    /// When the attempts are given up.
    pub(super) fn tired_at(&self) -> Option<Instant> {
        self.attempts.since.map(|since| since + GIVE_UP)
    }

    /// No session comes of the initiations sent so far. Returns the index of the last.
    pub(super) fn given_up(&mut self) -> Option<u32> {
        self.attempts.repeats = false;
        self.attempts.since = None;
        self.forget_initiation()
    }

    /// Erases the keys of an initiation that is not answered any more. Returns its index.
    pub(super) fn forget_initiation(&mut self) -> Option<u32> {
        let index = self.waits_for();
        self.attempts.initiated = None;
        index
    }

    /// We answered the peer's initiation with a session, which takes the place of one that the peer has not confirmed: it has another now, or is another.
    /// Sessions in use stay. Returns the one that is over.
    pub(super) fn answer_with(&mut self, keypair: Arc<Keypair>) -> Option<Arc<Keypair>> {
        self.attempts.repeats = false;
        self.sessions.next.replace(keypair)
    }

    /// The peer answered our initiation with a session. Returns the one that is over.
    pub(super) fn complete_with(&mut self, keypair: Arc<Keypair>) -> Option<Arc<Keypair>> {
        self.attempts.initiated = None;
        self.shaken();
        let former = self.sessions.current.replace(keypair);
        self.supersede(former)
    }

    /// The peer used the session that we answered with. None if it was confirmed before, else the one that is over.
    pub(super) fn confirm(&mut self, keypair: &Arc<Keypair>) -> Option<Option<Arc<Keypair>>> {
        let next = self
            .sessions
            .next
            .take_if(|next| Arc::ptr_eq(next, keypair))?;
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

    /// The session that packets are sealed in.
    pub(super) fn sending(&self, now: Instant) -> Option<Arc<Keypair>> {
        self.sessions
            .current
            .clone()
            .filter(|current| current.lasts(now) && current.is_confirmed())
    }

    /// Takes the sessions whose time is over.
    pub(super) fn end_sessions(&mut self, now: Instant) -> Over {
        let Sessions {
            previous,
            current,
            next,
            retired,
        } = &mut self.sessions;
        let is_over = |keypair: &mut Arc<Keypair>| !keypair.lasts(now);
        let mut over: Over = retired.extract_if(.., is_over).collect();
        over.extend(
            [previous, current, next]
                .into_iter()
                .filter_map(|session| session.take_if(is_over)),
        );
        over
    }

    /// When the first session ends.
    pub(super) fn session_ends(&self) -> Option<Instant> {
        let Sessions {
            previous,
            current,
            next,
            retired,
        } = &self.sessions;
        [previous, current, next]
            .into_iter()
            .flatten()
            .chain(retired)
            .map(|keypair| keypair.born + LASTS)
            .min()
    }

    /// Keeps a packet until there is a session. Returns the packet that had to go for it.
    pub(super) fn park(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if self.parked.is_empty() && !self.attempts.repeats {
            // What was tried before somebody wanted it, perhaps long ago, does not count against this packet.
            self.attempts.since = None;
        }
        self.parked.push_back(plain.to_vec());
        if self.parked.len() > PARKED {
            self.parked.pop_front()
        } else {
            None
        }
    }

    /// Ends everything with the peer. Returns the sessions, and the index of an initiation that waits.
    pub(super) fn remove(&mut self) -> (Over, Option<u32>) {
        (self.sessions.take(), self.renew())
    }
}

/// Why a message was refused.
#[cold]
pub(super) fn reason(refused: Refused) -> Reason {
    match refused {
        Refused::Malformed => Reason::Malformed,
        Refused::Tag | Refused::WeakKey => Reason::BadTag,
        Refused::Stranger => Reason::UnknownPeer,
        Refused::Replayed | Refused::Exhausted => Reason::Replayed,
        Refused::Unasked => Reason::NoSession,
    }
}

#[cfg(test)]
mod tests;
