//! The state of one peer: its tunnels, where it is, what waits for a session, when it is due.

use super::identity::Identity;
use crate::endpoint::Endpoint;
use boringtun::noise::errors::WireGuardError;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use types::wireguard::{PublicKey, Secret};

/// The most packets that wait for a session with one peer, as in the kernel.
const PARKED: usize = 128;
/// How long packets of the former tunnel are still accepted once the new one has a session.
const LINGER: Duration = Duration::from_secs(10);
/// Initiations to one peer are at least this far apart (REKEY_TIMEOUT), and a little more so that two nodes do not keep step.
const RETRY: Duration = Duration::from_secs(5);
const JITTER: u64 = 333;
/// How long initiations are sent that lead to no session (REKEY_ATTEMPT_TIME).
const GIVE_UP: Duration = Duration::from_secs(90);
/// So far ahead of a tunnel's the clock is when the tunnel is made anew.
const BEHIND: Duration = Duration::from_secs(5);
/// How long packets are sent in a session (REJECT_AFTER_TIME). The other end silently drops what comes later.
const LASTS: Duration = Duration::from_secs(180);

/// A peer's state, behind its lock.
pub(super) struct Link {
    /// Where its datagrams go, and from which address of this host: the one that the peer used last.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) preshared: Option<Secret>,
    /// Seconds between keepalives; zero for none.
    pub(super) keepalive: u16,
    /// Our key, with which the present tunnel is made. It counts, not that of a snapshot that a thread still has.
    identity: Option<Arc<Identity>>,
    /// Whether it was removed. Nothing is sealed or opened from then on, even by a thread that still sees it.
    pub(super) removed: bool,
    /// The tunnel with our present keys, which makes the handshakes. Made when it is needed first.
    tunn: Option<Box<Tunn>>,
    /// When it was made, by the clock and by what has passed.
    made: (SystemTime, Instant),
    /// When its session ends. None before it has one that the peer is known to have, too.
    ends: Option<Instant>,
    /// The tunnel with the keys before.
    old: Option<Old>,
    /// Which of its two indices the present tunnel uses, so that a datagram's index tells the tunnel.
    parity: u32,
    /// Plain packets that wait for a session, oldest first.
    pub(super) parked: VecDeque<Vec<u8>>,
    /// Whether an initiation was sent that has no answer yet.
    pub(super) initiated: bool,
    /// The earliest time of the next initiation, whatever becomes of the last.
    pub(super) again: Option<Instant>,
    /// Since when initiations are sent without a session coming of them.
    tries: Option<Instant>,
    /// When an initiation of the peer was answered last.
    pub(super) answered: Option<Instant>,
    /// When a handshake message in its name was refused last, after curve operations.
    pub(super) refused: Option<Instant>,
    /// The index of the session that the peer has to confirm with its first packet.
    pub(super) unconfirmed: Option<u32>,
    /// When packets were sealed or opened last.
    pub(super) used: Instant,
    /// When the last persistent keepalive was due. None: one is due at once.
    pub(super) kept: Option<Instant>,
    /// Whether the former tunnel asks for its next handshake, which is the present one's.
    pub(super) rekeys: bool,
    /// When it is to be visited.
    pub(super) due: Option<Instant>,
    /// When a handshake was completed last.
    pub(super) handshake: Option<SystemTime>,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// The tunnel of former keys.
struct Old {
    tunn: Box<Tunn>,
    /// When its session ends.
    ends: Option<Instant>,
    /// Whether it may still send. After a change of the private key it may not; a new preshared key counts from the next handshake.
    sends: bool,
    /// When it ends, once the present one has a session.
    until: Option<Instant>,
}

/// One of the two tunnels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    Present,
    Old,
}

impl Link {
    pub(super) fn new(
        identity: Option<Arc<Identity>>,
        endpoint: Option<Endpoint>,
        preshared: Option<Secret>,
        keepalive: u16,
        now: Instant,
    ) -> Self {
        Self {
            identity,
            endpoint,
            preshared,
            keepalive,
            removed: false,
            tunn: None,
            made: (SystemTime::UNIX_EPOCH, now),
            ends: None,
            old: None,
            parity: 0,
            parked: VecDeque::new(),
            initiated: false,
            again: None,
            tries: None,
            answered: None,
            refused: None,
            unconfirmed: None,
            used: now,
            kept: None,
            rekeys: false,
            due: None,
            handshake: None,
            sent: 0,
            received: 0,
        }
    }

    /// The present tunnel, unless we have no key. `index` is that of the peer, without the tunnel's parity.
    pub(super) fn tunn(&mut self, key: &PublicKey, index: u32) -> Option<&mut Tunn> {
        let identity = self.identity.as_ref()?;
        let parity = self.parity;
        let preshared = &self.preshared;
        let made = &mut self.made;
        let tunn = self.tunn.get_or_insert_with(|| {
            *made = (SystemTime::now(), Instant::now());
            let preshared = preshared.as_ref().map(|secret| *secret.bytes());
            let peer = x25519::PublicKey::from(key.0);
            Box::new(Tunn::new(
                identity.private.clone(),
                peer,
                preshared,
                None,
                index ^ parity,
                Some(Arc::clone(&identity.unlimited)),
            ))
        });
        Some(tunn)
    }

    /// Drops a tunnel without a session when the clock was set forward since it was made. The library stamps initiations with the clock of then and
    /// what has passed since; after a boot with a clock that is behind, peers would take them for copies until the end. Returns whether an
    /// initiation of it waits for its answer.
    pub(super) fn follow_clock(&mut self, clock: SystemTime, now: Instant) -> bool {
        let (then, at) = self.made;
        let stamp = then + now.saturating_duration_since(at);
        let behind = clock
            .duration_since(stamp)
            .is_ok_and(|behind| behind > BEHIND);
        if !behind || self.tunn.as_deref().is_none_or(has_session) {
            return false;
        }
        self.tunn = None;
        self.unconfirmed = None;
        self.again = None;
        std::mem::take(&mut self.initiated)
    }

    /// The present tunnel, if it was needed yet.
    pub(super) fn present(&mut self) -> Option<&mut Tunn> {
        self.tunn.as_deref_mut()
    }

    /// The former tunnel, and whether it may send.
    pub(super) fn old(&mut self) -> Option<(&mut Tunn, bool)> {
        self.old.as_mut().map(|old| (&mut *old.tunn, old.sends))
    }

    /// Whether there is a session to open packets with, or a former one.
    pub(super) fn has_session(&self) -> bool {
        self.tunn.as_deref().is_some_and(has_session) || self.old.is_some()
    }

    /// Takes the identity of a new private key. The present session opens packets and sends none.
    pub(super) fn rekey(&mut self, identity: Option<Arc<Identity>>) {
        self.identity = identity;
        self.renew(false);
    }

    /// The keys changed: the present tunnel becomes the former one.
    pub(super) fn renew(&mut self, sends: bool) {
        self.initiated = false;
        self.again = None;
        self.tries = None;
        self.unconfirmed = None;
        let Some(tunn) = self.tunn.take() else {
            return self.old.iter_mut().for_each(|old| old.sends &= sends);
        };
        let ends = self.ends.take();
        if ends.is_some() && has_session(&tunn) {
            self.old = Some(Old {
                tunn,
                ends,
                sends,
                until: None,
            });
            self.parity ^= 1;
        } else if let Some(old) = &mut self.old {
            // What has no session is worth less than what packets may still come in with.
            old.sends &= sends;
            old.until = None;
        }
    }

    /// Sends from whichever address the route names, until the peer uses one again.
    pub(super) fn forget_source(&mut self) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.source = None;
        }
    }

    /// Where an initiation goes. One that had no answer is repeated without the source, in case that is the cause, as the kernel does.
    pub(super) fn initiates_to(&mut self) -> Option<Endpoint> {
        if self.tries.is_some() {
            self.forget_source();
        }
        self.endpoint
    }

    /// Notes that an initiation was sent, and when the next one may be.
    pub(super) fn begun(&mut self, now: Instant) {
        self.initiated = true;
        self.again = Some(now + RETRY + Duration::from_millis(rand::random_range(0..JITTER)));
        self.tries.get_or_insert(now);
    }

    /// Whether an initiation may be sent: none waits for its answer, and the last was long enough ago. An answer to the peer's own initiation ends
    /// the waiting, so that with different preshared keys two nodes would provoke each other without end.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        !self.initiated && self.again.is_none_or(|again| again <= now)
    }

    /// Whether initiations have been sent in vain for too long.
    pub(super) fn is_tired(&self, now: Instant) -> bool {
        self.tries
            .is_some_and(|since| now.saturating_duration_since(since) >= GIVE_UP)
    }

    /// No session comes of the initiations sent so far.
    pub(super) fn given_up(&mut self) {
        self.initiated = false;
        self.tries = None;
    }

    /// The tunnel whose session packets are sent in.
    pub(super) fn sending(&self, now: Instant) -> Option<Which> {
        // The library ends sessions at visits, which are seconds apart, or when it gives up.
        let lasts = |tunn: &Tunn, ends: Option<Instant>| {
            ends.is_some_and(|ends| now < ends) && has_session(tunn)
        };
        if self
            .tunn
            .as_deref()
            .is_some_and(|tunn| lasts(tunn, self.ends))
        {
            return Some(Which::Present);
        }
        self.old
            .as_ref()
            .filter(|old| old.sends && lasts(&old.tunn, old.ends))
            .map(|_| Which::Old)
    }

    /// Seals a packet, which is padded, in the session of a tunnel that has one. Returns the length of the message.
    #[inline]
    pub(super) fn seal(&mut self, which: Which, plain: &[u8], out: &mut [u8]) -> Option<usize> {
        let tunn = match which {
            Which::Present => self.tunn.as_deref_mut()?,
            Which::Old => &mut self.old.as_mut()?.tunn,
        };
        match tunn.encapsulate(plain, out) {
            TunnResult::WriteToNetwork(message) if message.first() == Some(&4) => {
                let length = message.len();
                self.sent += length as u64;
                Some(length)
            }
            _ => None,
        }
    }

    /// Opens a data message into `out`, which is at least as long. Returns the length of the packet, zero for a keepalive.
    #[inline]
    pub(super) fn open(
        &mut self,
        parity: u32,
        message: &[u8],
        out: &mut [u8],
    ) -> Result<usize, WireGuardError> {
        let tunn = if parity == self.parity {
            self.tunn.as_deref_mut()
        } else {
            self.old.as_mut().map(|old| &mut *old.tunn)
        };
        match tunn
            .ok_or(WireGuardError::NoCurrentSession)?
            .decapsulate(None, message, out)
        {
            TunnResult::Done => Ok(0),
            TunnResult::WriteToTunnelV4(packet, _) => Ok(packet.len()),
            TunnResult::WriteToTunnelV6(packet, _) => Ok(packet.len()),
            TunnResult::Err(error) => Err(error),
            TunnResult::WriteToNetwork(_) => Err(WireGuardError::UnexpectedPacket),
        }
    }

    /// Keeps a packet until there is a session. Returns the packet that had to go for it.
    pub(super) fn park(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if self.parked.is_empty() && !self.initiated {
            // What was tried before somebody wanted it, perhaps long ago, does not count against this packet.
            self.tries = None;
        }
        self.parked.push_back(plain.to_vec());
        if self.parked.len() > PARKED {
            self.parked.pop_front()
        } else {
            None
        }
    }

    /// A handshake was completed, whose session is as old as `since`.
    pub(super) fn shaken(&mut self, since: Instant, now: Instant) {
        self.handshake = Some(SystemTime::now());
        self.tries = None;
        self.ends = self.ends.max(Some(since + LASTS));
        if let Some(old) = &mut self.old {
            old.until = Some(now + LINGER);
        }
    }

    /// A packet was opened by the tunnel of this parity: the peer has that session.
    #[inline]
    pub(super) fn heard(&mut self, parity: u32, now: Instant) {
        if parity == self.parity && self.ends.is_none_or(|ends| ends <= now) {
            self.heard_first(now);
        }
    }

    /// The peer used the answer before our last one. The library tells how old the youngest session is.
    #[cold]
    fn heard_first(&mut self, now: Instant) {
        let age = self
            .tunn
            .as_deref()
            .and_then(Tunn::time_since_last_handshake);
        self.ends = age
            .and_then(|age| now.checked_sub(age))
            .map(|since| since + LASTS);
    }

    /// Ends the former tunnel when its time has come or its session is over.
    pub(super) fn end_old(&mut self, now: Instant) {
        if self.old.as_ref().is_some_and(|old| {
            !has_session(&old.tunn) || old.until.is_some_and(|until| until <= now)
        }) {
            self.old = None;
        }
    }

    /// Ends everything with the peer.
    pub(super) fn remove(&mut self) {
        self.removed = true;
        self.tunn = None;
        self.ends = None;
        self.old = None;
        self.due = None;
    }
}

/// Whether a tunnel has a session. It may be one that the peer has not confirmed, and it may be over.
#[inline]
fn has_session(tunn: &Tunn) -> bool {
    tunn.time_since_last_handshake().is_some()
}
