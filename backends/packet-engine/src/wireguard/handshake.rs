//! Handshake messages: what is no message for us is dropped before any curve operation.

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
use boringtun::noise::{Packet, TunnResult};
use std::time::{Duration, Instant};

/// A peer's initiations are answered at most this often, as in the kernel: each costs curve operations.
const ANSWERS: Duration = Duration::from_millis(20);

impl Device {
    /// Handles a handshake message.
    pub(super) fn handshake(&self, message: &Message, snapshot: &Snapshot, now: Instant, buffer: &mut [u8], send: Send<'_>) {
        let Some(identity) = &snapshot.identity else { return self.counters.received.dropped(Reason::NoSession) };
        if let Err(reason) = self.shake(message, snapshot, identity, now, buffer, send) {
            self.counters.received.dropped(reason);
        }
    }

    fn shake(
        &self,
        message: &Message,
        snapshot: &Snapshot,
        identity: &Identity,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<(), Reason> {
        let from = message.from;
        identity.limiter.reset_count();
        let packet = match identity.limiter.verify_packet(Some(from.ip()), message.bytes(), buffer) {
            Ok(packet) => packet,
            Err(TunnResult::WriteToNetwork(cookie)) => {
                add(&self.counters.handshakes.cookies, usize::from(send(from, cookie)));
                return Ok(());
            }
            Err(_) => return Err(Reason::BadHandshake),
        };
        let peer = match &packet {
            Packet::HandshakeInit(init) => {
                let half = parse_handshake_anon(&identity.private, &identity.public, init).map_err(|_| Reason::BadHandshake)?;
                snapshot.peers.get(&half.peer_static_public).map(|peer| &**peer).ok_or(Reason::UnknownPeer)?
            }
            Packet::HandshakeResponse(response) => snapshot.peer(self.place(response.receiver_idx).0).ok_or(Reason::NoSession)?,
            Packet::PacketCookieReply(cookie) => snapshot.peer(self.place(cookie.receiver_idx).0).ok_or(Reason::NoSession)?,
            Packet::PacketData(_) => return Err(Reason::BadHandshake),
        };
        let mut link = peer.lock();
        if link.removed {
            return Err(Reason::UnknownPeer);
        }
        match packet {
            Packet::HandshakeInit(_) => self.answer(message, peer, &mut link, now, buffer, send),
            Packet::HandshakeResponse(_) => self.complete(message, peer, &mut link, snapshot, now, buffer, send),
            _ => self.cookie(message, &mut link, now, buffer, send),
        }
    }

    /// Answers a peer's initiation. The endpoint stays: an initiation may be a copy; the first packet in the new session is not.
    #[allow(clippy::too_many_arguments, reason = "one message, one peer, and the thread's tools")]
    fn answer(&self, message: &Message, peer: &Peer, link: &mut Link, now: Instant, buffer: &mut [u8], send: Send<'_>) -> Result<(), Reason> {
        if link.answered.is_some_and(|last| now.saturating_duration_since(last) < ANSWERS) {
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
        let sent = if send(message.from, reply) { reply.len() } else { 0 };
        // The response begins with its type and our index of the session.
        let session = reply.get(4..).and_then(|rest| rest.first_chunk::<4>()).map(|index| u32::from_le_bytes(*index));
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
    #[allow(clippy::too_many_arguments, reason = "one message, one peer, and the thread's tools")]
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
        let sent = if send(message.from, keepalive) { keepalive.len() } else { 0 };
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
    fn cookie(&self, message: &Message, link: &mut Link, now: Instant, buffer: &mut [u8], send: Send<'_>) -> Result<(), Reason> {
        self.tick(link, now, buffer, send);
        match link.present().ok_or(Reason::NoSession)?.decapsulate(Some(message.from.ip()), message.bytes(), buffer) {
            TunnResult::Err(error) => Err(reason(&error)),
            _ => Ok(()),
        }
    }
}
