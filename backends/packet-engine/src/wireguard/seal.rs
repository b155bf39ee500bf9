//! Seals packets of pods for peers. The destination selects the peer, once for all segments of a packet.

use super::device::Device;
use super::keypair::Keypair;
use super::message::{LONGEST, OVERHEAD, padded};
use super::peer::Peer;
use super::snapshot::Snapshot;
use crate::drop_error::DropError;
use crate::packet::Header;
use crate::packet::martian::is_martian;
use crate::socket::endpoint::Endpoint;
use crate::verdict::Icmp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// In bytes: the WireGuard header before the packet in a datagram.
const HEAD: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// Sealed packets go to this endpoint.
    Ready(Endpoint),
    /// Packets wait in a queue.
    AwaitingSession,
}

/// Seals the packets of one batch. It takes the lock of a peer only if packets have to wait for a session.
pub struct Sealer<'s> {
    device: &'s Device,
    snapshot: &'s Snapshot,
    now: Instant,
    held: Option<CurrentSession<'s>>,
}

/// The peer of the current run of packets.
struct CurrentSession<'s> {
    peer: &'s Peer,
    state: SendState,
    keypair: Option<Arc<Keypair>>,
    /// The bytes sealed for it.
    sealed: usize,
}

impl<'s> Sealer<'s> {
    /// The snapshot is the one from the start of the batch.
    pub fn new(device: &'s Device, snapshot: &'s Snapshot, now: Instant) -> Self {
        Self { device, snapshot, now, held: None }
    }

    /// Whether a packet is itself a datagram to a peer.
    #[inline]
    pub(crate) fn is_nested(&self, header: &Header, packet: &[u8]) -> bool {
        self.snapshot.is_nested(header, packet)
    }

    /// The slot of the peer that should receive a packet. `longest` is the packet's longest segment in bytes.
    /// The error is the reason to drop it, and an ICMP error for its sender.
    #[inline]
    pub fn route(&self, header: &Header, longest: usize) -> Result<u32, (Option<Icmp>, DropError)> {
        if is_martian(&header.destination) {
            return Err((None, DropError::Martian));
        }
        let slot = self
            .snapshot
            .slot_of(header.destination)
            .ok_or((Some(Icmp::NetUnreachable), DropError::NoRoute))?;
        if longest > usize::from(self.snapshot.mtu) {
            return Err((Some(Icmp::TooBig(self.snapshot.mtu)), DropError::TooBig));
        }
        Ok(slot)
    }

    /// In bytes, with padding.
    #[inline]
    #[must_use]
    pub fn padded(&self, length: usize) -> usize {
        padded(length, self.snapshot.mtu)
    }

    /// The longest sealed packet in bytes.
    #[inline]
    #[must_use]
    pub fn room(plain: usize) -> usize {
        (plain + OVERHEAD).max(LONGEST)
    }

    /// Selects a peer for the following packets, until [`Self::release`] or the next call.
    #[inline]
    pub fn hold(&mut self, slot: u32) -> Result<SendState, DropError> {
        if let Some(held) = self.held.as_ref().filter(|held| held.peer.slot == slot) {
            return Ok(held.state);
        }
        self.release();
        let peer = self.snapshot.peer(slot).ok_or(DropError::NoRoute)?;
        if peer.is_removed() {
            return Err(DropError::NoRoute);
        }
        let endpoint = peer.endpoint().ok_or(DropError::NoEndpoint)?;
        let keypair = peer.sending().clone().filter(|own| own.lasts(self.now));
        let state = match &keypair {
            Some(keypair) => {
                if keypair.is_worn_by_sending(self.now) {
                    self.device.want_session(peer, self.now);
                }
                SendState::Ready(endpoint)
            }
            None => SendState::AwaitingSession,
        };
        self.held = Some(CurrentSession { peer, state, keypair, sealed: 0 });
        Ok(state)
    }

    /// Seals a padded packet for the selected peer, and returns the length of the datagram in bytes. `None`
    /// if it fails.
    #[inline]
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Option<usize> {
        let length = plain.len() + OVERHEAD;
        out.get_mut(HEAD..HEAD + plain.len())?.copy_from_slice(plain);
        self.seal_in_place(out.get_mut(..length)?)
    }

    /// The same for a padded packet that is already at byte 16 of the datagram.
    #[inline]
    pub fn seal_in_place(&mut self, datagram: &mut [u8]) -> Option<usize> {
        let held = self.held.as_mut()?;
        held.keypair.as_ref()?.session.seal(datagram).ok()?;
        held.sealed += datagram.len();
        Some(datagram.len())
    }

    /// Queues a padded packet until the selected peer has a session. Returns how many packets were dropped
    /// for it.
    pub fn park(&mut self, plain: &[u8]) -> usize {
        let Some(held) = &self.held else { return 1 };
        self.device.park(held.peer, plain, self.now)
    }

    /// Ends the run of packets to the selected peer, and updates its counters and timers.
    #[inline]
    pub fn release(&mut self) {
        let Some(held) = self.held.take().filter(|held| held.sealed > 0) else {
            return;
        };
        let traffic = &held.peer.traffic;
        traffic.sent.fetch_add(held.sealed as u64, Ordering::Relaxed);
        if let Some(at) = traffic.note_sent(&self.device.clock, self.now, true) {
            self.device.visit_by(held.peer, at, self.now);
        }
    }
}

impl Drop for Sealer<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
