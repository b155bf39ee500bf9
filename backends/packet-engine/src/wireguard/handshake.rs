//! Handshake messages: a copy, or what is no message for us, is dropped before any curve operation.

use super::admission::{Admission, Refusal};
use super::device::Device;
use super::identity::Identity;
use super::link::Link;
use super::open::reason;
use super::peer::Peer;
use super::pending::Message;
use super::snapshot::Snapshot;
use super::work::Send;
use crate::counters::add;
use crate::reason::Reason;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::{Packet, Tunn, TunnResult};
use std::time::{Duration, Instant};
use types::wireguard::PublicKey;

/// A peer's initiations are answered at most this often, as in the kernel: each costs curve operations.
const ANSWERS: Duration = Duration::from_millis(20);

impl Device {
    /// Decides about an initiation, before any curve operation. `cookies` are those that strangers can still get in this round.
    #[allow(
        clippy::too_many_arguments,
        reason = "one message, and the thread's tools"
    )]
    pub(super) fn admit(
        &self,
        mut message: Message,
        admission: &mut Admission,
        cookies: &mut usize,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        let received = &self.counters.received;
        let Some(identity) = &snapshot.identity else {
            return received.dropped(Reason::NoSession);
        };
        if admission.copies.has(message.bytes()) {
            return received.dropped(Reason::Replayed);
        }
        let from = message.from.to;
        let Some(proven) = identity.proof(from, message.bytes()) else {
            return received.dropped(Reason::BadHandshake);
        };
        message.proven = proven;
        match admission.admit(message, snapshot, now) {
            Ok(()) => {}
            Err(Refusal::Drop(reason)) => received.dropped(reason),
            Err(Refusal::Prove) => {
                if *cookies == 0 && !admission.is_peer(from, snapshot, now) {
                    return received.dropped(Reason::HandshakeFlood);
                }
                *cookies = cookies.saturating_sub(1);
                if let Err(reason) = self.demand_proof(&message, identity, buffer, send) {
                    received.dropped(reason);
                }
            }
        }
    }

    /// Handles an initiation whose turn has come.
    pub(super) fn initiated(
        &self,
        message: &Message,
        admission: &mut Admission,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        // A copy may also have waited.
        if admission.copies.has(message.bytes()) {
            return self.counters.received.dropped(Reason::Replayed);
        }
        let done = self.shake(message, snapshot, now, buffer, send);
        if matches!(done, Ok(true) | Err(Reason::Replayed)) {
            admission.copies.remember(message.bytes());
        }
        if let Err(reason) = done {
            self.counters.received.dropped(reason);
        }
    }

    /// Handles an answer to one of our messages.
    pub(super) fn answered(
        &self,
        mut message: Message,
        admission: &mut Admission,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        let received = &self.counters.received;
        let Some(identity) = &snapshot.identity else {
            return received.dropped(Reason::NoSession);
        };
        let Some(proven) = identity.proof(message.from.to, message.bytes()) else {
            return received.dropped(Reason::BadHandshake);
        };
        // A cookie has no MACs, and takes no curve operation.
        message.proven = proven && message.is_response();
        message.proven = admission.rank(&message, snapshot, now).is_some();
        if let Err(reason) = self.shake(&message, snapshot, now, buffer, send) {
            received.dropped(reason);
        }
    }

    /// Sends a cookie, with which the sender of a message proves its address the next time.
    fn demand_proof(
        &self,
        message: &Message,
        identity: &Identity,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<(), Reason> {
        // A sender that already has a cookie has used up its tokens.
        let cookie = identity
            .cookie(message.from.to, message.bytes(), buffer)
            .ok_or(Reason::HandshakeLimit)?;
        add(
            &self.counters.handshakes.cookies,
            usize::from(send(message.from, cookie)),
        );
        Ok(())
    }

    /// Handles a message. Returns whether it was accepted; if not, its sender has to prove its address first.
    fn shake(
        &self,
        message: &Message,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<bool, Reason> {
        let identity = snapshot.identity.as_ref().ok_or(Reason::NoSession)?;
        let packet =
            Tunn::parse_incoming_packet(message.bytes()).map_err(|_| Reason::BadHandshake)?;
        let peer = match &packet {
            Packet::HandshakeInit(init) => {
                let half = parse_handshake_anon(&identity.private, &identity.public, init)
                    .map_err(|_| Reason::BadHandshake)?;
                snapshot
                    .peers
                    .get(&PublicKey(half.peer_static_public))
                    .map(|peer| &**peer)
                    .ok_or(Reason::UnknownPeer)?
            }
            Packet::HandshakeResponse(response) => snapshot
                .peer(self.place(response.receiver_idx).0)
                .ok_or(Reason::NoSession)?,
            Packet::PacketCookieReply(cookie) => snapshot
                .peer(self.place(cookie.receiver_idx).0)
                .ok_or(Reason::NoSession)?,
            Packet::PacketData(_) => return Err(Reason::BadHandshake),
        };
        let mut link = peer.lock();
        if link.removed {
            return Err(Reason::UnknownPeer);
        }
        if let Packet::PacketCookieReply(_) = packet {
            return self
                .cookie(message, &mut link, now, buffer, send)
                .map(|()| true);
        }
        // Refused messages in a peer's name must not keep the peer out: only messages without a proven address are affected.
        if !message.proven
            && link
                .refused
                .is_some_and(|last| now.saturating_duration_since(last) < ANSWERS)
        {
            drop(link);
            return self
                .demand_proof(message, identity, buffer, send)
                .map(|()| false);
        }
        let done = match packet {
            Packet::HandshakeInit(_) => self.answer(message, peer, &mut link, now, buffer, send),
            _ => self.complete(message, peer, &mut link, snapshot, now, buffer, send),
        };
        // These cost curve operations under the lock.
        if let Err(Reason::Replayed | Reason::BadTag) = done {
            link.refused = Some(now);
        }
        done.map(|()| true)
    }

    /// Answers a peer's initiation. The endpoint stays: an initiation may be a copy; the first packet in the new session is not.
    #[allow(
        clippy::too_many_arguments,
        reason = "one message, one peer, and the thread's tools"
    )]
    fn answer(
        &self,
        message: &Message,
        peer: &Peer,
        link: &mut Link,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<(), Reason> {
        if link
            .answered
            .is_some_and(|last| now.saturating_duration_since(last) < ANSWERS)
        {
            return Err(Reason::HandshakeFlood);
        }
        self.tick(link, now, buffer, send);
        let index = self.index(peer.slot);
        let tunn = link.tunn(&peer.key, index).ok_or(Reason::BadHandshake)?;
        let reply = match tunn.decapsulate(Some(message.from.ip()), message.bytes(), buffer) {
            TunnResult::WriteToNetwork(reply) => reply,
            TunnResult::Err(error) => return Err(reason(&error)),
            _ => return Err(Reason::BadHandshake),
        };
        let sent = if send(message.from, reply) {
            reply.len()
        } else {
            0
        };
        // The response begins with its type and our index of the session.
        let session = reply
            .get(4..)
            .and_then(|rest| rest.first_chunk::<4>())
            .map(|index| u32::from_le_bytes(*index));
        add(&self.counters.handshakes.answered, usize::from(sent > 0));
        link.answered = Some(now);
        link.unconfirmed = session;
        link.initiated = false;
        link.sent += sent as u64;
        link.received += message.bytes().len() as u64;
        if link.endpoint.is_none() {
            link.endpoint = Some(message.from);
        }
        self.used(peer, link, now);
        Ok(())
    }

    /// Completes a handshake that we initiated, and sends what waited for it.
    #[allow(
        clippy::too_many_arguments,
        reason = "one message, one peer, and the thread's tools"
    )]
    fn complete(
        &self,
        message: &Message,
        peer: &Peer,
        link: &mut Link,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<(), Reason> {
        self.tick(link, now, buffer, send);
        let tunn = link.present().ok_or(Reason::NoSession)?;
        let keepalive = match tunn.decapsulate(Some(message.from.ip()), message.bytes(), buffer) {
            TunnResult::WriteToNetwork(keepalive) => keepalive,
            TunnResult::Err(error) => return Err(reason(&error)),
            _ => return Err(Reason::BadHandshake),
        };
        let sent = if send(message.from, keepalive) {
            keepalive.len()
        } else {
            0
        };
        add(&self.counters.handshakes.completed, 1);
        link.endpoint = Some(message.from);
        link.initiated = false;
        link.sent += sent as u64;
        link.received += message.bytes().len() as u64;
        link.shaken(now, now);
        self.unpark(peer, link, snapshot, now, buffer, send);
        self.used(peer, link, now);
        Ok(())
    }

    /// Keeps a cookie for the next initiation, which is due as before.
    fn cookie(
        &self,
        message: &Message,
        link: &mut Link,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<(), Reason> {
        self.tick(link, now, buffer, send);
        match link.present().ok_or(Reason::NoSession)?.decapsulate(
            Some(message.from.ip()),
            message.bytes(),
            buffer,
        ) {
            TunnResult::Err(error) => Err(reason(&error)),
            _ => Ok(()),
        }
    }
}
