//! Work of the handshake thread, off the packet path: handshake messages, due timers of peers, and scheduled
//! initiations. Each new peer gets one, and so do all peers after a change of this node's key.

mod admission;
mod allowance;
mod answer;
mod copies;
pub(crate) mod pending;
mod visit;

use crate::device::{Device, Send};
use crate::handshakes::admission::Admission;
use crate::handshakes::pending::Message;
use crate::noise::{Kind, OVERHEAD};
use crate::snapshot::Snapshot;
use packet_engine::encryption::Transmit;
use packet_engine::socket::endpoint::Endpoint;
use std::time::{Duration, Instant};

/// Maximum number of initiations, responses and peers with due timers in one round, so that no long queue
/// delays other work. Short rounds soon empty the inboxes again.
const INITIATIONS: usize = 8;
const ANSWERS: usize = 16;
/// Maximum number of cookie replies to unknown senders in one round; each takes a system call.
pub(crate) const COOKIES: usize = 128;
const VISITS: usize = 64;
/// Maximum number of scheduled initiations within [`PACE`]. A handshake costs three curve operations on each
/// side.
const GREETINGS: usize = 10;
const PACE: Duration = Duration::from_millis(10);
/// AF41, as in the kernel, so that nodes renew sessions even when a link is congested.
const HANDSHAKE: u8 = 0x88;

/// What the handshake thread keeps between rounds.
pub(crate) struct Worker {
    pub(crate) buffer: Vec<u8>,
    /// Taken from the inboxes.
    answers: Vec<Message>,
    initiations: Vec<Message>,
    admission: Admission,
    /// Earliest time of the next scheduled initiation.
    next_initiation: Instant,
}

impl Default for Worker {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            buffer: vec![0; usize::from(u16::MAX) + OVERHEAD],
            answers: Vec::new(),
            initiations: Vec::new(),
            admission: Admission::new(now),
            next_initiation: now,
        }
    }
}

impl Device {
    /// Does one round of the handshake thread's work. Returns the time of the next one, if no new work
    /// arrives earlier.
    pub(crate) fn work(
        &self,
        now: Instant,
        worker: &mut Worker,
        send: Transmit<'_>,
    ) -> Option<Instant> {
        let send = &mut |to: Endpoint, datagram: &[u8]| {
            send(to, datagram, tos_of(datagram))
                .inspect_err(|reason| self.counters.sent.count_dropped_packet(*reason))
                .is_ok()
        };
        let snapshot = self.snapshot();
        let busy = self.messages(now, worker, &snapshot, send);
        for _ in 0..VISITS {
            let Some((due, slot)) = self.pending.due(now) else {
                break;
            };
            // The timers of a peer that was published after the round began may be due, so load the latest snapshot.
            let snapshot = self.snapshot();
            let Some(peer) = snapshot.peer(slot) else {
                continue;
            };
            // If this fails, another thread has changed the time.
            if peer.traffic.take(&self.clock, due) {
                self.visit(peer, &snapshot, now, false, &mut worker.buffer, send);
            }
        }
        let mut next = self.pending.next();
        if now >= worker.next_initiation {
            for _ in 0..GREETINGS {
                let Some((slot, more)) = self.pending.next_initiation() else {
                    break;
                };
                if more {
                    worker.next_initiation = now + PACE;
                }
                let snapshot = self.snapshot();
                let Some(peer) = snapshot.peer(slot) else {
                    continue;
                };
                self.visit(peer, &snapshot, now, true, &mut worker.buffer, send);
            }
            next = self.pending.next();
        }
        let initiation = self.pending.has_initiations().then_some(worker.next_initiation);
        next.into_iter().chain(initiation).chain(busy.then_some(now)).min()
    }

    /// Handles up to [`ANSWERS`] responses or cookie replies and [`INITIATIONS`] initiations. True if more
    /// wait.
    pub(crate) fn messages(
        &self,
        now: Instant,
        worker: &mut Worker,
        snapshot: &Snapshot,
        send: Send<'_>,
    ) -> bool {
        self.pending.take(&mut worker.answers, &mut worker.initiations);
        let Worker { buffer, answers, initiations, admission, .. } = worker;
        for message in answers.drain(..answers.len().min(ANSWERS)) {
            self.answered(message, admission, snapshot, now, buffer, send);
        }
        let mut cookies = COOKIES;
        for message in initiations.drain(..) {
            self.admit(message, admission, &mut cookies, snapshot, now, send);
        }
        for _ in 0..INITIATIONS {
            let Some(message) = admission.next() else {
                break;
            };
            self.initiated(&message, admission, snapshot, now, buffer, send);
        }
        admission.is_waiting() || !answers.is_empty()
    }
}

/// The TOS octet of a datagram.
fn tos_of(datagram: &[u8]) -> u8 {
    match datagram.first() {
        Some(kind) if *kind != Kind::Data as u8 => HANDSHAKE,
        _ => 0,
    }
}
