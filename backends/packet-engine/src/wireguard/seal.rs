//! Packets of pods to peers: the peer is chosen once for each packet, by its destination, and the packet is sealed for that peer or not at all.

use super::device::Device;
use super::keypair::Keypair;
use super::message::{LONGEST, OVERHEAD, padded};
use super::peer::Peer;
use super::snapshot::Snapshot;
use crate::endpoint::Endpoint;
use crate::martian::martian;
use crate::packet::Header;
use crate::reason::Reason;
use crate::verdict::Icmp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What comes before a packet in its datagram.
const HEAD: usize = 16;

/// How packets to a peer leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// Sealed, to this address.
    Ready(Endpoint),
    /// Not before there is a session: they are kept for it.
    AwaitingSession,
}

/// Seals the packets of one batch. It waits for nobody, unless packets have to wait for a session.
pub struct Sealer<'s> {
    device: &'s Device,
    snapshot: &'s Snapshot,
    now: Instant,
    held: Option<Held<'s>>,
}

/// The peer of the run.
struct Held<'s> {
    peer: &'s Peer,
    state: SendState,
    keypair: Option<Arc<Keypair>>,
    /// The bytes that were sealed for it.
    sealed: usize,
}

impl<'s> Sealer<'s> {
    /// A sealer for one batch, with what was published when it began.
    pub fn new(device: &'s Device, snapshot: &'s Snapshot, now: Instant) -> Self {
        Self {
            device,
            snapshot,
            now,
            held: None,
        }
    }

    /// Whether a packet is itself a datagram to a peer.
    #[inline]
    pub(crate) fn is_nested(&self, header: &Header, packet: &[u8]) -> bool {
        self.snapshot.is_nested(header, packet)
    }

    /// The slot of the peer that a packet is for. `longest` is the length of its longest segment.
    ///
    /// # Errors
    /// Why it is dropped, and what its sender is told.
    #[inline]
    pub fn route(&self, header: &Header, longest: usize) -> Result<u32, (Option<Icmp>, Reason)> {
        if martian(&header.destination) {
            return Err((None, Reason::Martian));
        }
        let slot = self
            .snapshot
            .slot_of(header.destination)
            .ok_or((Some(Icmp::NetUnreachable), Reason::NoRoute))?;
        if longest > usize::from(self.snapshot.mtu) {
            return Err((Some(Icmp::TooBig(self.snapshot.mtu)), Reason::TooBig));
        }
        Ok(slot)
    }

    /// The length of a packet with its padding.
    #[inline]
    pub fn padded(&self, length: usize) -> usize {
        padded(length, self.snapshot.mtu)
    }

    /// The room that a sealed packet takes at most.
    #[inline]
    pub fn room(plain: usize) -> usize {
        (plain + OVERHEAD).max(LONGEST)
    }

    /// Turns to a peer, until another one is turned to or all are released.
    ///
    /// # Errors
    /// The reason to drop packets to it.
    #[inline]
    pub fn hold(&mut self, slot: u32) -> Result<SendState, Reason> {
        if let Some(held) = self.held.as_ref().filter(|held| held.peer.slot == slot) {
            return Ok(held.state);
        }
        self.release();
        let peer = self.snapshot.peer(slot).ok_or(Reason::NoRoute)?;
        if peer.is_removed() {
            return Err(Reason::NoRoute);
        }
        let endpoint = peer.endpoint().ok_or(Reason::NoEndpoint)?;
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
        self.held = Some(Held {
            peer,
            state,
            keypair,
            sealed: 0,
        });
        Ok(state)
    }

    /// Seals a packet, which is padded, for the peer that was turned to. Returns the length of the datagram.
    #[inline]
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Option<usize> {
        let length = plain.len() + OVERHEAD;
        out.get_mut(HEAD..HEAD + plain.len())?
            .copy_from_slice(plain);
        self.seal_in_place(out.get_mut(..length)?)
    }

    /// Seals the packet, which is padded, at byte 16 of a datagram. Returns the length of the datagram.
    #[inline]
    pub fn seal_in_place(&mut self, datagram: &mut [u8]) -> Option<usize> {
        let held = self.held.as_mut()?;
        held.keypair.as_ref()?.session.seal(datagram).ok()?;
        held.sealed += datagram.len();
        Some(datagram.len())
    }

    /// Keeps a packet, which is padded, until there is a session with the peer that was turned to. Returns the number of packets dropped for that.
    pub fn park(&mut self, plain: &[u8]) -> usize {
        let Some(held) = &self.held else { return 1 };
        self.device.park(held.peer, plain, self.now)
    }

    /// Ends the run of the peer that was turned to.
    #[inline]
    pub fn release(&mut self) {
        let Some(held) = self.held.take().filter(|held| held.sealed > 0) else {
            return;
        };
        let traffic = &held.peer.traffic;
        traffic
            .sent
            .fetch_add(held.sealed as u64, Ordering::Relaxed);
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
