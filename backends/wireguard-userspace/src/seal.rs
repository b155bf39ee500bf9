//! Seals packets of pods for peers. The destination selects the peer, once for all segments of a packet.

use crate::device::Device;
use crate::keypair::Keypair;
use crate::noise::HEAD;
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use packet_engine::drop_error::DropError;
use packet_engine::encryption::{Seal, SendState};
use packet_engine::packet::Header;
use packet_engine::packet::martian::is_martian;
use packet_engine::verdict::Icmp;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Granularity of the padding of packets, in bytes.
const PADDING: usize = 16;

/// Seals the packets of one batch. It takes the lock of a peer only if packets have to wait for a session.
pub(crate) struct Sealer<'s> {
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
    pub(crate) fn new(device: &'s Device, snapshot: &'s Snapshot, now: Instant) -> Self {
        Self { device, snapshot, now, held: None }
    }

    /// Ends the run of packets to the selected peer, and updates its counters and timers.
    #[inline]
    fn release(&mut self) {
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

impl Seal for Sealer<'_> {
    #[inline]
    fn select_peer(
        &mut self,
        header: &Header,
        packet: &[u8],
        longest: usize,
    ) -> Result<SendState, (Option<Icmp>, DropError)> {
        let Self { snapshot, device, now, .. } = *self;
        if snapshot.is_nested(header, packet) {
            return Err((None, DropError::Loop));
        }
        if is_martian(&header.destination) {
            return Err((None, DropError::Martian));
        }
        let slot = snapshot
            .slot_of(header.destination)
            .ok_or((Some(Icmp::NetUnreachable), DropError::NoRoute))?;
        if longest > usize::from(snapshot.mtu) {
            return Err((Some(Icmp::TooBig(snapshot.mtu)), DropError::TooBig));
        }
        if let Some(held) = self.held.as_ref().filter(|held| held.peer.slot == slot) {
            return Ok(held.state);
        }
        self.release();
        let peer = snapshot
            .peer(slot)
            .filter(|peer| !peer.is_removed())
            .ok_or((None, DropError::NoRoute))?;
        let endpoint = peer.endpoint().ok_or((None, DropError::NoEndpoint))?;
        let keypair = peer.sending().clone().filter(|own| own.lasts(now));
        let state = match &keypair {
            Some(keypair) => {
                if keypair.is_worn_by_sending(now) {
                    device.want_session(peer, now);
                }
                SendState::Ready(endpoint)
            }
            None => SendState::AwaitingSession,
        };
        self.held = Some(CurrentSession { peer, state, keypair, sealed: 0 });
        Ok(state)
    }

    /// Padding hides the exact length but never makes a packet longer than the MTU.
    #[inline]
    fn place(&self, length: usize) -> Range<usize> {
        let padded = length.next_multiple_of(PADDING).min(self.snapshot.mtu.into()).max(length);
        HEAD..HEAD + padded
    }

    #[inline]
    fn seal(&mut self, datagram: &mut [u8]) -> bool {
        let Some(held) = &mut self.held else { return false };
        let sealed = held.keypair.as_ref().is_some_and(|own| own.session.seal(datagram).is_ok());
        held.sealed += if sealed { datagram.len() } else { 0 };
        sealed
    }

    fn park(&mut self, plain: &[u8]) -> usize {
        let Some(held) = &self.held else { return 1 };
        self.device.park(held.peer, plain, self.now)
    }
}

impl Drop for Sealer<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
