//! Runs the due timers of peers: ends expired sessions, sends keepalives, begins handshakes, and sends
//! packets that waited for a session.

use crate::device::Device;
use crate::device::Send;
use crate::keypair::random_key;
use crate::link::Link;
use crate::noise::{self, HEAD, OVERHEAD};
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use crate::traffic::{ANSWER, KEEPALIVE};
use packet_engine::counters::add_to_counter;
use packet_engine::drop_error::DropError;
use packet_engine::packet::{Header, ip_total_length};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// At least this long from one run of a peer's timers to the next that it schedules.
const PAUSE: Duration = Duration::from_millis(10);

impl Device {
    /// Does all that is due for a peer, and schedules the next run of its timers. `greet` also begins a
    /// handshake if there is no session.
    pub(crate) fn visit(
        &self,
        peer: &Peer,
        snapshot: &Snapshot,
        now: Instant,
        greet: bool,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        if peer.is_removed() {
            return;
        }
        let begins = {
            let mut link = peer.lock();
            self.end(link.end_sessions(now));
            if link.tired_at().is_some_and(|at| at <= now) {
                self.given_up(peer, &mut link);
            }
            let alive = self.keep_alive(peer, &mut link, now, buffer, send);
            self.acknowledge(peer, now, buffer, send);
            // Sent packets got no reply: the peer may have restarted.
            let unanswered =
                self.clock.read(&peer.traffic.unanswered).filter(|since| *since + ANSWER <= now);
            if unanswered.is_some() {
                peer.traffic.unanswered.clear();
                peer.traffic.wants_session.store(true, Ordering::Relaxed);
            }
            let lacks = link.sending(now).is_none();
            let wanted = lacks && (greet || !alive || !link.parked.is_empty())
                || link.repeats()
                || peer.traffic.wants_session.load(Ordering::Relaxed);
            wanted && link.may_begin(now)
        };
        if begins {
            self.initiate(peer, now, send);
        }
        let mut link = peer.lock();
        self.unpark(peer, &mut link, snapshot, now, buffer, send);
        self.enter_next(peer, &link, now);
    }

    fn given_up(&self, peer: &Peer, link: &mut Link) {
        self.free(link.given_up());
        peer.traffic.wants_session.store(false, Ordering::Relaxed);
        add_to_counter(&self.counters.handshakes.failed, 1);
        self.give_up(link);
    }

    /// Sends a persistent keepalive if it is due. False if it has no session.
    fn keep_alive(
        &self,
        peer: &Peer,
        link: &mut Link,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> bool {
        let every = Duration::from_secs(link.keepalive.into());
        if every.is_zero() || self.keepalive_due(peer, link).is_some_and(|at| at > now) {
            return true;
        }
        link.kept = Some(now);
        self.send_keepalive(peer, now, buffer, send)
    }

    /// The time of the next persistent keepalive; `None` before the first.
    fn keepalive_due(&self, peer: &Peer, link: &Link) -> Option<Instant> {
        let every = Duration::from_secs(link.keepalive.into());
        // Any datagram in either direction also keeps a NAT mapping alive.
        let passed = self.clock.read(&peer.traffic.passed);
        link.kept.map(|kept| kept.max(passed.unwrap_or(kept)) + every)
    }

    /// Acknowledges the peer's packets with a keepalive if this node sent nothing for [`KEEPALIVE`].
    fn acknowledge(&self, peer: &Peer, now: Instant, buffer: &mut [u8], send: Send<'_>) {
        let since = self.clock.read(&peer.traffic.unacknowledged);
        if since.is_some_and(|since| since + KEEPALIVE <= now) {
            peer.traffic.unacknowledged.clear();
            self.send_keepalive(peer, now, buffer, send);
        }
    }

    /// A keepalive is a datagram without an inner packet. False if there is no session or no endpoint.
    pub(crate) fn send_keepalive(
        &self,
        peer: &Peer,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> bool {
        let sending = peer.sending();
        let (Some(to), Some(keypair)) =
            (peer.endpoint(), sending.as_ref().filter(|own| own.lasts(now)))
        else {
            return false;
        };
        if let Some(datagram) = buffer.get_mut(..OVERHEAD)
            && keypair.session.seal(datagram).is_ok()
        {
            let sent = send(to, datagram);
            peer.traffic.count(datagram, sent, &[]);
            peer.traffic.note_sent(&self.clock, now, false);
        }
        true
    }

    /// Begins a handshake if the peer's endpoint is known.
    fn initiate(&self, peer: &Peer, now: Instant, send: Send<'_>) {
        if peer.endpoint().is_none() {
            return;
        }
        let (draft, stamp, repeated) = {
            let mut link = peer.lock();
            let Some(draft) = link.draft(&peer.key) else {
                return;
            };
            let repeated = link.tries();
            let stamp = link.stamp(SystemTime::now());
            // Set before the initiation is made, so that a failure is not retried without a pause.
            link.try_again(now);
            (draft, stamp, repeated)
        };
        let (Some(ephemeral), Some(index)) = (random_key(), self.indices.reserve(peer.slot)) else {
            return;
        };
        let made =
            noise::begin_handshake(&draft.identity.keys, &draft.remote, index, stamp, &ephemeral);
        let mut link = peer.lock();
        let (true, Ok((initiated, mut message))) =
            (!peer.is_removed() && link.is_current(&draft), made)
        else {
            return self.indices.set(index, None);
        };
        // An unanswered initiation is repeated without the source address, which may be the cause. The kernel does the same.
        if repeated {
            peer.forget_source();
        }
        link.peer_cookie.prove(&mut message, now);
        self.free(link.begun(initiated, now));
        drop(link);
        if peer.endpoint().is_some_and(|to| send(to, message.bytes())) {
            add_to_counter(&self.counters.handshakes.initiated, 1);
            peer.traffic.count(message.bytes(), true, &[]);
        }
    }

    /// Sends the packets that waited for a session, if there is one now.
    pub(crate) fn unpark(
        &self,
        peer: &Peer,
        link: &mut Link,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        let (Some(to), Some(keypair)) = (peer.endpoint(), link.sending(now)) else {
            return;
        };
        while let Some(plain) = link.parked.pop_front() {
            self.unparked(&plain);
            // The subnet of its destination may have moved to another peer meanwhile.
            let Some(length) = length_and_destination(&plain)
                .filter(|(_, to)| snapshot.slot_of(*to) == Some(peer.slot))
                .map(|(length, _)| length)
            else {
                self.counters.sent.count_dropped_packet(DropError::NoRoute);
                continue;
            };
            let sealed = buffer.get_mut(..plain.len() + OVERHEAD).and_then(|datagram| {
                datagram.get_mut(HEAD..HEAD + plain.len())?.copy_from_slice(&plain);
                keypair.session.seal(datagram).ok()?;
                Some(&*datagram)
            });
            let Some(datagram) = sealed else {
                self.counters.sent.count_dropped_packet(DropError::NoSession);
                continue;
            };
            if send(to, datagram) {
                add_to_counter(&self.counters.sent.packets, 1);
                add_to_counter(&self.counters.sent.bytes, length);
                add_to_counter(&self.counters.sent.units, 1);
                peer.traffic.count(datagram, true, &[]);
            }
            if let Some(at) = peer.traffic.note_sent(&self.clock, now, true) {
                self.visit_by(peer, at, now);
            }
        }
    }

    /// Schedules the next run of a peer's timers, unless nothing is due before one of the sides sends another
    /// packet.
    pub(crate) fn enter_next(&self, peer: &Peer, link: &Link, now: Instant) {
        let wants = peer.traffic.wants_session.load(Ordering::Relaxed);
        // Packets that still wait although an initiation is allowed wait for something else, such as a key.
        let retry = link
            .again()
            .filter(|again| link.repeats() || wants || !link.parked.is_empty() && *again > now);
        let since = |mark, pause| self.clock.read(mark).map(|since| since + pause);
        let keepalive = if link.keepalive > 0 { self.keepalive_due(peer, link) } else { None };
        let next = [
            retry,
            link.tired_at(),
            link.session_ends(),
            keepalive,
            since(&peer.traffic.unanswered, ANSWER),
            since(&peer.traffic.unacknowledged, KEEPALIVE),
        ]
        .into_iter()
        .flatten()
        .min();
        // Never in the past, whatever the clock does: otherwise the handshake thread would run the peer's timers in a loop.
        if let Some(at) = next {
            self.visit_by(peer, at.max(now + PAUSE), now);
        }
    }
}

/// The length in bytes and the destination of a waiting packet.
fn length_and_destination(plain: &[u8]) -> Option<(usize, std::net::IpAddr)> {
    let length = ip_total_length(plain)?;
    Header::parse(plain.get(..length)?).ok().map(|header| (length, header.destination))
}
