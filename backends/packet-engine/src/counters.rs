//! Counters that the engine's threads write, and others read without locks.

use crate::drop_error::DropError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters of one direction.
#[derive(Debug, Default)]
pub struct Direction {
    /// Inner packets that were forwarded.
    pub packets: AtomicU64,
    /// Bytes of these packets, with IP headers.
    pub bytes: AtomicU64,
    /// One per receive call, or per iteration of the sending thread's loop.
    pub batches: AtomicU64,
    /// What carried the packets: GSO packets or single ones, as they were written or sent.
    pub units: AtomicU64,
    /// Reads that failed for a reason other than an empty queue.
    pub errors: AtomicU64,
    drops: [AtomicU64; DropError::ALL.len()],
}

impl Direction {
    pub fn count_dropped_packet(&self, reason: DropError) {
        self.count_dropped_packets(reason, 1);
    }

    pub fn count_dropped_packets(&self, reason: DropError, packets: usize) {
        if let Some(counter) = self.drops.get(reason as usize) {
            add_to_counter(counter, packets);
        }
    }

    /// A test stops at a broken rule of this program; in production, its packets are lost and counted.
    #[cold]
    pub(crate) fn count_internal_error(&self, rule: &str, packets: usize) {
        debug_assert!(false, "{rule}");
        self.count_dropped_packets(DropError::Internal, packets);
    }

    #[cfg(test)]
    pub(crate) fn all_drops(&self) -> u64 {
        self.drops.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    pub fn drops(&self, reason: DropError) -> u64 {
        self.drops.get(reason as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// With relaxed ordering: no order between different counters.
pub fn add_to_counter(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// They stay 0 unless the engine encrypts.
#[derive(Debug, Default)]
pub struct Handshakes {
    /// Whether the engine encrypts.
    pub happen: AtomicBool,
    /// Sent, also repeatedly.
    pub initiated: AtomicU64,
    /// Initiations of peers to which this node responded.
    pub answered: AtomicU64,
    /// Whoever began them.
    pub completed: AtomicU64,
    /// Given up after 90 s without a session.
    pub failed: AtomicU64,
    /// Cookie replies sent: the sender of a handshake message has to prove its address.
    pub cookies: AtomicU64,
}

impl Handshakes {
    /// With their names; `None` if the engine does not encrypt.
    pub fn named_counts_if_encrypting(&self) -> Option<[(&'static str, u64); 5]> {
        let counters = [
            ("initiated", &self.initiated),
            ("answered", &self.answered),
            ("completed", &self.completed),
            ("failed", &self.failed),
            ("cookies", &self.cookies),
        ];
        self.happen
            .load(Ordering::Relaxed)
            .then(|| counters.map(|(name, counter)| (name, counter.load(Ordering::Relaxed))))
    }
}

/// The counters of an engine, and its mode.
#[derive(Debug, Default)]
pub struct Counters {
    /// From pods to peers.
    pub sent: Direction,
    /// From peers to pods.
    pub received: Direction,
    pub handshakes: Handshakes,
    /// ICMP errors sent to pods.
    pub icmp: AtomicU64,
    /// Segmented sends that had to be repeated one datagram at a time.
    pub unsegmented: AtomicU64,
    /// How often a thread lost its priority because a time budget ran out.
    pub budgets_spent: AtomicU64,
    /// The active mode (`offload`, `mmsg` or `plain`) and the granted offloads.
    pub mode: parking_lot::Mutex<String>,
}
