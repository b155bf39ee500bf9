//! Opens datagrams from peers. The index in a datagram selects the session, and the inner source address must
//! belong to its peer. The outer source address is not checked, because it proves nothing. That of an
//! authentic datagram becomes the peer's endpoint.

use crate::device::Device;
use crate::handshakes::pending::Message;
use crate::keypair::{Keypair, Named};
use crate::link::drop_reason;
use crate::noise::Session;
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use packet_engine::drop_error::DropError;
use packet_engine::encryption::Open;
use packet_engine::packet::{Header, ip_total_length};
use packet_engine::socket::endpoint::Endpoint;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Opens the datagrams of one batch. It takes the lock of a peer only once per session, when the peer
/// confirms it.
pub(crate) struct Opener<'s> {
    device: &'s Device,
    snapshot: &'s Snapshot,
    now: Instant,
    held: Option<CurrentSession<'s>>,
}

/// The session of the current run of datagrams.
struct CurrentSession<'s> {
    peer: &'s Peer,
    keypair: Arc<Keypair>,
    /// The sender of the last authentic datagram in this run.
    from: Option<Endpoint>,
    /// The bytes opened, and whether any datagram contained a packet.
    opened: usize,
    carried: bool,
}

impl<'s> Opener<'s> {
    /// The snapshot is the one that is current when the batch begins.
    pub(crate) fn new(device: &'s Device, snapshot: &'s Snapshot, now: Instant) -> Self {
        Self { device, snapshot, now, held: None }
    }

    /// Queues a message for the handshake thread.
    #[cold]
    fn leave(&mut self, datagram: &[u8], from: Endpoint) -> Result<Option<Header>, DropError> {
        let message = Message::new(from, datagram).ok_or(DropError::BadHeader)?;
        if self.device.pending.leave(message) { Ok(None) } else { Err(DropError::HandshakeFlood) }
    }

    /// Queues a response or cookie reply. `at` is the offset of the receiver index, which a forger has to
    /// guess.
    #[cold]
    fn response(
        &mut self,
        datagram: &[u8],
        at: usize,
        from: Endpoint,
    ) -> Result<Option<Header>, DropError> {
        let index =
            datagram.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(DropError::Short)?;
        self.device.indices.get(u32::from_le_bytes(*index)).ok_or(DropError::NoSession)?;
        self.leave(datagram, from)
    }

    #[inline]
    fn data(
        &mut self,
        index: u32,
        datagram: &mut [u8],
        from: Endpoint,
    ) -> Result<Option<Header>, DropError> {
        let held = self.hold(index)?;
        let length = held.keypair.session.open(datagram).map_err(drop_reason)?;
        held.opened += datagram.len();
        held.carried |= length > 0;
        let (peer, slot) = (held.peer, held.peer.slot);
        if held.from != Some(from) {
            held.from = Some(from);
            peer.set_endpoint(from);
        }
        if !held.keypair.is_confirmed() {
            let keypair = Arc::clone(&held.keypair);
            self.device.confirmed(peer, &keypair, self.now);
        }
        if length == 0 {
            return Ok(None);
        }
        let padded = datagram.get(..length).ok_or(DropError::Short)?;
        let length = ip_total_length(padded).ok_or(DropError::Malformed)?;
        let header = Header::parse(padded.get(..length).ok_or(DropError::Short)?)?;
        // Only the peer that owns the source address may send from it.
        if self.snapshot.slot_of(header.source) != Some(slot) {
            return Err(DropError::Spoofed);
        }
        if self.snapshot.is_nested(&header, datagram.get(..length).unwrap_or_default()) {
            return Err(DropError::Loop);
        }
        Ok(Some(header))
    }

    /// Selects the session of this receiver index.
    #[inline]
    fn hold(&mut self, index: u32) -> Result<&mut CurrentSession<'s>, DropError> {
        let same = |held: &CurrentSession<'_>| held.keypair.session.index() == index;
        if !self.held.as_ref().is_some_and(same) {
            self.release();
            let Some(Named::Session(keypair)) = self.device.indices.get(index) else {
                return Err(DropError::NoSession);
            };
            let peer = self.snapshot.peer(keypair.slot).ok_or(DropError::NoSession)?;
            // The slot may already belong to another peer, and the session may be over.
            if peer.key != keypair.peer || peer.is_removed() || !keypair.lasts(self.now) {
                return Err(DropError::NoSession);
            }
            self.held =
                Some(CurrentSession { peer, keypair, from: None, opened: 0, carried: false });
        }
        self.held.as_mut().ok_or(DropError::NoSession)
    }

    /// Ends the run of datagrams of a session, and updates the counters and timers of its peer.
    #[inline]
    fn release(&mut self) {
        let Some(held) = self.held.take().filter(|held| held.opened > 0) else {
            return;
        };
        let (peer, traffic) = (held.peer, &held.peer.traffic);
        traffic.received.fetch_add(held.opened as u64, Ordering::Relaxed);
        if let Some(at) = traffic.note_received(&self.device.clock, self.now, held.carried) {
            self.device.visit_by(peer, at, self.now);
        }
        if held.keypair.is_worn_by_receiving(self.now) {
            self.device.want_session(peer, self.now);
        }
    }
}

impl Open for Opener<'_> {
    /// `None` for a keepalive, and for a handshake message, which is queued for the handshake thread.
    #[inline]
    fn open(&mut self, datagram: &mut [u8], from: Endpoint) -> Result<Option<Header>, DropError> {
        if let Some(index) = Session::index_in(datagram) {
            return self.data(index, datagram, from);
        }
        let kind = datagram.first_chunk::<4>().ok_or(DropError::Short)?;
        match (u32::from_le_bytes(*kind), datagram.len()) {
            // The lengths of initiation, response and cookie reply.
            (1, 148) => self.leave(datagram, from),
            (2, 92) => self.response(datagram, 8, from),
            (3, 64) => self.response(datagram, 4, from),
            (1..=4, _) => Err(DropError::Short),
            _ => Err(DropError::BadHeader),
        }
    }
}

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
