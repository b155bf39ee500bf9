//! Datagrams from peers: a session opens them, and the packet inside must come from an address that belongs to that session's peer. The sender's
//! address proves nothing and does not matter; it is where answers go once a packet from it was authentic.

use super::device::Device;
use super::link::Link;
use super::peer::Peer;
use super::pending::Message;
use super::snapshot::Snapshot;
use crate::endpoint::Endpoint;
use crate::packet::Header;
use crate::reason::Reason;
use boringtun::noise::errors::WireGuardError;
use std::sync::MutexGuard;
use std::time::Instant;

/// The counter from which a session is over. Beyond it, sums in the library would overflow.
const LAST_COUNTER: u64 = u64::MAX - (1 << 13);
/// Type, receiver and counter.
const HEAD: usize = 16;

/// Opens the datagrams of one batch.
pub struct Opener<'s> {
    device: &'s Device,
    snapshot: &'s Snapshot,
    now: Instant,
    held: Option<(&'s Peer, MutexGuard<'s, Link>)>,
}

impl<'s> Opener<'s> {
    /// An opener for one batch, with what was published when it began.
    pub fn new(device: &'s Device, snapshot: &'s Snapshot, now: Instant) -> Self {
        Self {
            device,
            snapshot,
            now,
            held: None,
        }
    }

    /// Opens a datagram in place: the packet is at its beginning afterwards. `scratch` is for the sealed bytes. None if there is no packet in it: a
    /// keepalive, or a handshake message, which is left for the thread that makes handshakes.
    ///
    /// # Errors
    /// The reason to drop it.
    #[inline]
    pub fn open(
        &mut self,
        datagram: &mut [u8],
        from: Endpoint,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Header>, Reason> {
        let kind = datagram.first_chunk::<4>().ok_or(Reason::Short)?;
        match (u32::from_le_bytes(*kind), datagram.len()) {
            (4, 32..) => self.data(datagram, from, scratch),
            // The lengths of initiation, response and cookie reply.
            (1, 148) => self.leave(datagram, from),
            (2, 92) => self.response(datagram, 8, from),
            (3, 64) => self.response(datagram, 4, from),
            (1..=4, _) => Err(Reason::Short),
            _ => Err(Reason::BadHeader),
        }
    }

    /// Leaves a message for the thread that makes handshakes.
    #[cold]
    fn leave(&mut self, datagram: &[u8], from: Endpoint) -> Result<Option<Header>, Reason> {
        let message = Message::new(from, datagram).ok_or(Reason::BadHeader)?;
        if self.device.pending.leave(message) {
            Ok(None)
        } else {
            Err(Reason::HandshakeFlood)
        }
    }

    /// Leaves the answer to one of our messages. Its receiver, which a forger has to guess, is at `at`.
    #[cold]
    fn response(
        &mut self,
        datagram: &[u8],
        at: usize,
        from: Endpoint,
    ) -> Result<Option<Header>, Reason> {
        let index = datagram
            .get(at..)
            .and_then(|rest| rest.first_chunk::<4>())
            .ok_or(Reason::Short)?;
        let (slot, _) = self.device.place(u32::from_le_bytes(*index));
        self.snapshot.peer(slot).ok_or(Reason::NoSession)?;
        self.leave(datagram, from)
    }

    #[inline]
    fn data(
        &mut self,
        datagram: &mut [u8],
        from: Endpoint,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Header>, Reason> {
        let head = datagram.first_chunk::<HEAD>().ok_or(Reason::Short)?;
        let [_, _, _, _, i0, i1, i2, i3, counter @ ..] = *head;
        let index = u32::from_le_bytes([i0, i1, i2, i3]);
        if u64::from_le_bytes(counter) > LAST_COUNTER {
            return Err(Reason::Replayed);
        }
        let (slot, parity) = self.device.place(index);
        if self.held.as_ref().is_none_or(|(peer, _)| peer.slot != slot) {
            self.release();
            let peer = self.snapshot.peer(slot).ok_or(Reason::NoSession)?;
            self.held = Some((peer, peer.lock()));
        }
        let Some((peer, link)) = &mut self.held else {
            return Err(Reason::NoSession);
        };
        scratch.clear();
        scratch.extend_from_slice(datagram);
        let length = link
            .open(parity, scratch, datagram)
            .map_err(|error| reason(&error))?;
        link.received += scratch.len() as u64;
        if link.endpoint != Some(from) {
            link.endpoint = Some(from);
        }
        if link.unconfirmed == Some(index) {
            link.unconfirmed = None;
            let since = link.answered.unwrap_or(self.now);
            link.shaken(since, self.now);
            self.device.confirmed(peer, link, self.now);
        }
        link.heard(parity, self.now);
        self.device.used(peer, link, self.now);
        if length == 0 {
            return Ok(None);
        }
        let header = Header::parse(datagram.get(..length).ok_or(Reason::Short)?)?;
        // Whoever is not the owner of the source address may not speak for it.
        if self.snapshot.slot_of(header.source) != Some(slot) {
            return Err(Reason::Spoofed);
        }
        if self
            .snapshot
            .is_nested(&header, datagram.get(..length).unwrap_or_default())
        {
            return Err(Reason::Loop);
        }
        Ok(Some(header))
    }

    /// Releases the peer that is held. To be called before anything that takes time.
    #[inline]
    pub fn release(&mut self) {
        self.held = None;
    }
}

/// Why the library refused a message.
#[cold]
pub(super) fn reason(error: &WireGuardError) -> Reason {
    match error {
        WireGuardError::WrongIndex
        | WireGuardError::NoCurrentSession
        | WireGuardError::UnexpectedPacket
        | WireGuardError::ConnectionExpired => Reason::NoSession,
        WireGuardError::InvalidCounter
        | WireGuardError::DuplicateCounter
        | WireGuardError::WrongTai64nTimestamp => Reason::Replayed,
        WireGuardError::InvalidPacket => Reason::Malformed,
        _ => Reason::BadTag,
    }
}
