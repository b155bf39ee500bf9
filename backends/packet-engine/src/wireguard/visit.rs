//! What is due with a peer: the protocol's timers, keepalives, handshakes that are wanted, packets that waited for a session.

use super::device::Device;
use super::link::Link;
use super::peer::Peer;
use super::snapshot::Snapshot;
use super::work::Send;
use crate::counters::add;
use crate::packet::{Header, told_length};
use crate::reason::Reason;
use boringtun::noise::TunnResult;
use std::time::{Duration, Instant, SystemTime};

/// How often a peer with a session is visited, by how long nothing was sent or received.
const VISITS: [(Duration, Duration); 3] = [
    (Duration::from_secs(1), Duration::from_millis(500)),
    // Until then keepalives and handshakes may become due that answer what was received or sent.
    (Duration::from_secs(16), Duration::from_secs(1)),
    // What is left are the ends of sessions, after two and three minutes.
    (Duration::MAX, SELDOM),
];
const SELDOM: Duration = Duration::from_secs(5);
/// The types of messages.
const INITIATION: u8 = 1;
const DATA: u8 = 4;

impl Device {
    /// Does what is due with a peer and enters its next visit. `greet` asks for a session if there is none.
    #[allow(
        clippy::too_many_arguments,
        reason = "one peer, and the thread's tools"
    )]
    pub(super) fn visit(
        &self,
        peer: &Peer,
        link: &mut Link,
        snapshot: &Snapshot,
        now: Instant,
        greet: bool,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        if link.removed {
            return;
        }
        let restarts = link.follow_clock(SystemTime::now(), now);
        self.tick(link, now, buffer, send);
        let kept = self.keep_alive(link, now, buffer, send);
        let wanted = greet || restarts || !kept || !link.parked.is_empty();
        if link.sending(now).is_none() && wanted || link.rekeys {
            self.initiate(peer, link, now, buffer, send);
        }
        self.unpark(peer, link, snapshot, now, buffer, send);
        if let Some(next) = next_visit(link, now) {
            self.visit_by(peer, link, next, now);
        }
    }

    /// Runs the timers of both tunnels. To be called before a tunnel handles a handshake: it takes the time of its last tick for the present.
    pub(super) fn tick(&self, link: &mut Link, now: Instant, buffer: &mut [u8], send: Send<'_>) {
        let mut sent = 0;
        let mut given_up = false;
        match link.present().map(|tunn| tunn.update_timers(buffer)) {
            Some(TunnResult::WriteToNetwork(message)) => {
                let begins = message.first() == Some(&INITIATION);
                let to = if begins {
                    link.initiates_to()
                } else {
                    link.endpoint
                };
                let went = to.is_some_and(|to| send(to, message));
                sent += if went { message.len() } else { 0 };
                if begins {
                    add(&self.counters.handshakes.initiated, usize::from(went));
                    link.begun(now);
                }
            }
            // It stays in that state until the next initiation.
            Some(TunnResult::Err(_)) => given_up = link.initiated,
            _ => {}
        }
        // The library counts anew after each answer to the peer.
        if given_up || link.is_tired(now) {
            link.given_up();
            add(&self.counters.handshakes.failed, 1);
            self.give_up(link);
        }
        // One that may not send is run, too, so that its session ends.
        let endpoint = link.endpoint;
        if let Some((old, sends)) = link.old()
            && let TunnResult::WriteToNetwork(message) = old.update_timers(buffer)
            && sends
        {
            if message.first() == Some(&DATA) {
                sent += if endpoint.is_some_and(|to| send(to, message)) {
                    message.len()
                } else {
                    0
                };
            } else {
                // Its next handshake is the first under the new preshared key.
                link.rekeys = true;
            }
        }
        link.sent += sent as u64;
        link.end_old(now);
    }

    /// Sends a persistent keepalive if it is due. False if a session is needed for it.
    fn keep_alive(&self, link: &mut Link, now: Instant, buffer: &mut [u8], send: Send<'_>) -> bool {
        let every = Duration::from_secs(link.keepalive.into());
        if every.is_zero() || link.kept.is_some_and(|kept| kept + every > now) {
            return true;
        }
        link.kept = Some(now);
        let (Some(to), Some(which)) = (link.endpoint, link.sending(now)) else {
            return false;
        };
        if let Some(message) = link
            .seal(which, &[], buffer)
            .and_then(|length| buffer.get(..length))
        {
            send(to, message);
        }
        true
    }

    /// Initiates a handshake, unless one waits for its answer or the last was initiated a moment ago.
    fn initiate(
        &self,
        peer: &Peer,
        link: &mut Link,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        if !link.may_begin(now) {
            return;
        }
        let Some(to) = link.initiates_to() else {
            return;
        };
        let Some(tunn) = link.tunn(&peer.key, self.index(peer.slot)) else {
            return;
        };
        let TunnResult::WriteToNetwork(message) = tunn.format_handshake_initiation(buffer, true)
        else {
            return;
        };
        let length = message.len();
        if send(to, message) {
            add(&self.counters.handshakes.initiated, 1);
            link.sent += length as u64;
        }
        link.begun(now);
        link.rekeys = false;
    }

    /// Sends what waited for a session, if there is one.
    pub(super) fn unpark(
        &self,
        peer: &Peer,
        link: &mut Link,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        let (Some(to), Some(which)) = (link.endpoint, link.sending(now)) else {
            return;
        };
        while let Some(plain) = link.parked.pop_front() {
            self.unparked(&plain);
            // Its subnet may have moved to another peer meanwhile.
            let Some(length) = inner(&plain)
                .filter(|(_, to)| snapshot.slot_of(*to) == Some(peer.slot))
                .map(|(length, _)| length)
            else {
                self.counters.sent.dropped(Reason::NoRoute);
                continue;
            };
            let Some(message) = link
                .seal(which, &plain, buffer)
                .and_then(|length| buffer.get(..length))
            else {
                self.counters.sent.dropped(Reason::NoSession);
                continue;
            };
            if send(to, message) {
                add(&self.counters.sent.packets, 1);
                add(&self.counters.sent.bytes, length);
                add(&self.counters.sent.units, 1);
            }
        }
    }
}

/// The length and the destination of a padded packet, which was parsed when it was parked.
fn inner(plain: &[u8]) -> Option<(usize, std::net::IpAddr)> {
    let length = told_length(plain)?;
    Header::parse(plain.get(..length)?)
        .ok()
        .map(|header| (length, header.destination))
}

/// When a peer has to be visited again. None if nothing can become due before its packets flow again or it sends a message.
fn next_visit(link: &Link, now: Instant) -> Option<Instant> {
    // Packets that wait although it is time wait for something else, such as a key.
    let retry = link
        .again
        .filter(|again| link.initiated || !link.parked.is_empty() && *again > now);
    let session = link.has_session().then(|| {
        let quiet = now.saturating_duration_since(link.used);
        now + VISITS
            .iter()
            .find(|(limit, _)| quiet < *limit)
            .map_or(SELDOM, |(_, pause)| *pause)
    });
    let keepalive = link
        .kept
        .filter(|_| link.keepalive > 0)
        .map(|kept| kept + Duration::from_secs(link.keepalive.into()));
    // Never in the past, whatever the clock did: a peer must not be visited over and over.
    retry
        .into_iter()
        .chain(session)
        .chain(keepalive)
        .min()
        .map(|at| at.max(now + Duration::from_millis(10)))
}
