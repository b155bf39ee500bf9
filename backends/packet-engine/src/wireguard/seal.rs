//! Packets of pods to peers: the peer is chosen once for each packet, by its destination, and the packet is sealed for that peer or not at all.

use super::device::Device;
use super::link::{Link, Which};
use super::message::{LONGEST, OVERHEAD, padded};
use super::peer::Peer;
use super::snapshot::Snapshot;
use crate::endpoint::Endpoint;
use crate::martian::martian;
use crate::packet::Header;
use crate::reason::Reason;
use crate::verdict::Icmp;
use std::sync::MutexGuard;
use std::time::Instant;

/// How packets to a peer leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// Sealed, to this address.
    Ready(Endpoint),
    /// Not before there is a session: they are kept for it.
    AwaitingSession,
}

/// Seals the packets of one batch.
pub struct Sealer<'s> {
    device: &'s Device,
    snapshot: &'s Snapshot,
    now: Instant,
    held: Option<Held<'s>>,
}

/// The peer of the run, locked.
struct Held<'s> {
    peer: &'s Peer,
    link: MutexGuard<'s, Link>,
    which: Option<Which>,
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

    /// Locks a peer, until another one is locked or all are released.
    ///
    /// # Errors
    /// The reason to drop packets to it.
    #[inline]
    pub fn hold(&mut self, slot: u32) -> Result<SendState, Reason> {
        if self.held.as_ref().is_none_or(|held| held.peer.slot != slot) {
            // Two peers are never locked at a time.
            self.release();
            let peer = self.snapshot.peer(slot).ok_or(Reason::NoRoute)?;
            let mut link = peer.lock();
            let which = link.sending(self.now);
            if !link.removed && which.is_some() {
                self.device.used(peer, &mut link, self.now);
            }
            self.held = Some(Held { peer, link, which });
        }
        let Some(held) = &self.held else {
            return Err(Reason::NoRoute);
        };
        if held.link.removed {
            return Err(Reason::NoRoute);
        }
        let endpoint = held.link.endpoint.ok_or(Reason::NoEndpoint)?;
        Ok(if held.which.is_some() {
            SendState::Ready(endpoint)
        } else {
            SendState::AwaitingSession
        })
    }

    /// Seals a packet, which is padded, for the peer that is held. Returns the length of the datagram.
    #[inline]
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Option<usize> {
        let held = self.held.as_mut()?;
        held.link.seal(held.which?, plain, out)
    }

    /// Keeps a packet, which is padded, until there is a session with the peer that is held. Returns the number of packets dropped for that.
    pub fn park(&mut self, plain: &[u8]) -> usize {
        let Some(held) = &mut self.held else { return 1 };
        self.device.park(held.peer, &mut held.link, plain, self.now)
    }

    /// Releases the peer that is held. To be called before anything that takes time.
    #[inline]
    pub fn release(&mut self) {
        self.held = None;
    }
}
