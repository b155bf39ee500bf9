//! Handles handshake messages. Copies of initiations, and messages for others, are dropped before any curve
//! operation. Curve operations run without the peer's lock, except for the static-static secret, computed
//! once per peer.

use crate::device::Device;
use crate::device::Send;
use crate::handshakes::admission::{Admission, AdmissionError};
use crate::handshakes::pending::Message;
use crate::identity::Identity;
use crate::keypair::{Keypair, Named, random_key};
use crate::link::drop_reason;
use crate::noise::{CookieReply, Initiation, Response, UnprovenInitiation};
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use packet_engine::counters::add_to_counter;
use packet_engine::drop_error::DropError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use types::wireguard::PublicKey;

/// Minimum time between two responses to a peer, as in the kernel: each costs curve operations.
const ANSWERS: Duration = Duration::from_millis(20);

impl Device {
    /// Decides whether an initiation is queued, before any curve operation. `cookies` is the number of cookie
    /// replies that unknown senders may still get in this round of work.
    pub(crate) fn admit(
        &self,
        mut message: Message,
        admission: &mut Admission,
        cookies: &mut usize,
        snapshot: &Snapshot,
        now: Instant,
        send: Send<'_>,
    ) {
        let received = &self.counters.received;
        let Some(identity) = &snapshot.identity else {
            return received.count_dropped_packet(DropError::NoSession);
        };
        if admission.copies.has(message.bytes()) {
            return received.count_dropped_packet(DropError::Replayed);
        }
        let from = message.from.to;
        let Some(proven) = identity.proof(from, message.bytes(), now) else {
            return received.count_dropped_packet(DropError::BadHandshake);
        };
        message.proven = proven;
        match admission.admit(message, snapshot, now) {
            Ok(()) => {}
            Err(AdmissionError::Drop(reason)) => received.count_dropped_packet(reason),
            Err(AdmissionError::Prove) => {
                if *cookies == 0 && !admission.is_peer(from, snapshot, now) {
                    return received.count_dropped_packet(DropError::HandshakeFlood);
                }
                *cookies = cookies.saturating_sub(1);
                if let Err(reason) = self.demand_proof(&message, identity, now, send) {
                    received.count_dropped_packet(reason);
                }
            }
        }
    }

    /// Handles the next initiation in the queue.
    pub(crate) fn initiated(
        &self,
        message: &Message,
        admission: &mut Admission,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) {
        // A copy may also have been queued.
        if admission.copies.has(message.bytes()) {
            return self.counters.received.count_dropped_packet(DropError::Replayed);
        }
        let done = self.process_handshake(message, snapshot, now, buffer, send);
        if matches!(done, Ok(true) | Err(DropError::Replayed)) {
            admission.copies.remember(message.bytes());
        }
        if let Err(reason) = done {
            self.counters.received.count_dropped_packet(reason);
        }
    }

    /// Handles a response or a cookie reply to one of this node's messages.
    pub(crate) fn answered(
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
            return received.count_dropped_packet(DropError::NoSession);
        };
        // A cookie reply has no MACs to verify, and costs no curve operation.
        if message.is_response() {
            let Some(proven) = identity.proof(message.from.to, message.bytes(), now) else {
                return received.count_dropped_packet(DropError::BadHandshake);
            };
            message.proven = proven;
            message.proven = admission.rank(&message, snapshot, now).is_some();
        }
        if let Err(reason) = self.process_handshake(&message, snapshot, now, buffer, send) {
            received.count_dropped_packet(reason);
        }
    }

    /// Sends a cookie reply, with which the sender can prove its address in the next message.
    fn demand_proof(
        &self,
        message: &Message,
        identity: &Identity,
        now: Instant,
        send: Send<'_>,
    ) -> Result<(), DropError> {
        // A sender that already has a cookie has no tokens left.
        let cookie = identity
            .cookie(message.from.to, message.bytes(), now)
            .ok_or(DropError::HandshakeLimit)?;
        add_to_counter(
            &self.counters.handshakes.cookies,
            usize::from(send(message.from, cookie.bytes())),
        );
        Ok(())
    }

    /// False if the sender first has to prove its address.
    fn process_handshake(
        &self,
        message: &Message,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<bool, DropError> {
        let identity = snapshot.identity.as_ref().ok_or(DropError::NoSession)?;
        let named = |index| {
            let slot = self.indices.get(index).ok_or(DropError::NoSession)?.slot();
            snapshot.peer(slot).ok_or(DropError::NoSession)
        };
        if let Some(cookie) = CookieReply::read(message.bytes()) {
            let peer = named(cookie.receiver())?;
            return self.cookie(cookie, peer, now).map(|()| true);
        }
        let (peer, asked) = if let Some(response) = Response::read(message.bytes()) {
            (named(response.receiver())?, HandshakeMessage::Response(response))
        } else {
            let initiation = Initiation::read(message.bytes()).ok_or(DropError::BadHandshake)?;
            let half = UnprovenInitiation::read(&identity.keys, initiation)
                .map_err(|_| DropError::BadHandshake)?;
            let peer =
                snapshot.peers.get(&PublicKey(*half.public())).ok_or(DropError::UnknownPeer)?;
            (&**peer, HandshakeMessage::Initiation(Box::new(half)))
        };
        if peer.is_removed() {
            return Err(DropError::UnknownPeer);
        }
        // Forged messages in a peer's name must not keep the peer out, so only messages without a proven address are affected.
        let refused = peer.lock().refused;
        if !message.proven
            && refused.is_some_and(|last| now.saturating_duration_since(last) < ANSWERS)
        {
            return self.demand_proof(message, identity, now, send).map(|()| false);
        }
        let done = match asked {
            HandshakeMessage::Initiation(half) => self.answer(message, *half, peer, now, send),
            HandshakeMessage::Response(response) => {
                self.complete(message, response, peer, snapshot, now, buffer, send)
            }
        };
        // Messages that are rejected for these reasons have cost curve operations.
        if let Err(DropError::Replayed | DropError::BadTag) = done {
            peer.lock().refused = Some(now);
        }
        done.map(|()| true)
    }

    /// Responds to a peer's initiation. The peer's endpoint does not change yet, because an initiation may be
    /// a copy. The first packet in the new session is not, so its source becomes the endpoint.
    fn answer(
        &self,
        message: &Message,
        half: UnprovenInitiation,
        peer: &Peer,
        now: Instant,
        send: Send<'_>,
    ) -> Result<(), DropError> {
        let draft = {
            let mut link = peer.lock();
            if link.answered.is_some_and(|last| now.saturating_duration_since(last) < ANSWERS) {
                return Err(DropError::HandshakeFlood);
            }
            link.draft(&peer.key).ok_or(DropError::BadHandshake)?
        };
        let (asked, stamp) = half.prove(&draft.remote).map_err(drop_reason)?;
        peer.lock().see(stamp).map_err(drop_reason)?;
        let index = self.indices.reserve(peer.slot).ok_or(DropError::NoSession)?;
        let made = random_key()
            .ok_or(DropError::NoSession)
            .and_then(|ephemeral| {
                asked
                    .answer(&draft.remote, draft.preshared(), index, &ephemeral)
                    .map_err(drop_reason)
            })
            .inspect_err(|_| self.indices.set(index, None));
        let (session, mut reply) = made?;
        let keypair = Arc::new(Keypair::new(session, peer.key, peer.slot, now, false));
        {
            let mut link = peer.lock();
            if peer.is_removed() || !link.is_current(&draft) {
                self.indices.set(index, None);
                return Err(DropError::BadHandshake);
            }
            link.peer_cookie.prove_answer(&mut reply, now);
            self.indices.set(index, Some(&Named::Session(Arc::clone(&keypair))));
            let over = link.answer_with(keypair);
            self.end(over);
            link.answered = Some(now);
            self.enter_next(peer, &link, now);
        }
        let sent = send(message.from, reply.bytes());
        add_to_counter(&self.counters.handshakes.answered, usize::from(sent));
        peer.traffic.count(reply.bytes(), sent, message.bytes());
        if peer.endpoint().is_none() {
            peer.set_endpoint(message.from);
        }
        Ok(())
    }

    /// Completes a handshake that this node initiated, and sends the packets that waited for it.
    #[allow(
        clippy::too_many_arguments,
        reason = "the function needs one message, one peer and the thread's context"
    )]
    fn complete(
        &self,
        message: &Message,
        response: &Response,
        peer: &Peer,
        snapshot: &Snapshot,
        now: Instant,
        buffer: &mut [u8],
        send: Send<'_>,
    ) -> Result<(), DropError> {
        let (draft, initiated) = {
            let mut link = peer.lock();
            let initiated = link.initiated(response.receiver()).ok_or(DropError::NoSession)?;
            let draft = link.draft(&peer.key).ok_or(DropError::BadHandshake)?;
            (draft, initiated)
        };
        let session = initiated
            .complete(&draft.identity.keys, draft.preshared(), response)
            .map_err(drop_reason)?;
        let keypair = Arc::new(Keypair::new(session, peer.key, peer.slot, now, true));
        let mut link = peer.lock();
        if peer.is_removed() || !link.is_current(&draft) {
            return Err(DropError::BadHandshake);
        }
        self.indices.set(initiated.index(), Some(&Named::Session(Arc::clone(&keypair))));
        let over = link.complete_with(Arc::clone(&keypair));
        self.end(over);
        peer.send_in(Some(keypair));
        peer.traffic.wants_session.store(false, Ordering::Relaxed);
        add_to_counter(&self.counters.handshakes.completed, 1);
        peer.set_endpoint(message.from);
        peer.traffic.count(&[], false, message.bytes());
        peer.traffic.note_received(&self.clock, now, false);
        // The first datagram confirms the session to the peer, even if no packet waits.
        self.send_keepalive(peer, now, buffer, send);
        self.unpark(peer, &mut link, snapshot, now, buffer, send);
        self.enter_next(peer, &link, now);
        Ok(())
    }

    /// Stores a cookie for the next initiation, but does not reschedule it.
    fn cookie(&self, cookie: &CookieReply, peer: &Peer, now: Instant) -> Result<(), DropError> {
        let mut link = peer.lock();
        let remote = link.draft(&peer.key).ok_or(DropError::NoSession)?.remote;
        link.peer_cookie.keep(&remote, cookie, now).map_err(drop_reason)
    }
}

/// An initiation or a response.
enum HandshakeMessage<'m> {
    Initiation(Box<UnprovenInitiation>),
    Response(&'m Response),
}
