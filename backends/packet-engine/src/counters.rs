//! The engine's counters, written by its threads and read for metrics. No thread waits for another here.

use crate::reason::Reason;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters of one direction.
#[derive(Debug)]
pub struct Direction {
    /// Inner packets that were forwarded.
    pub packets: AtomicU64,
    /// Their bytes, inner headers included.
    pub bytes: AtomicU64,
    /// Batches: system calls that transferred something.
    pub batches: AtomicU64,
    /// Super-packets and single packets written or sent: the units that carried `packets`.
    pub units: AtomicU64,
    /// Reads that failed for a reason other than no packets waiting.
    pub errors: AtomicU64,
    drops: [AtomicU64; Reason::ALL.len()],
}

impl Default for Direction {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            packets: zero(),
            bytes: zero(),
            batches: zero(),
            units: zero(),
            errors: zero(),
            drops: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

impl Direction {
    /// Counts one packet that was dropped for this reason.
    pub fn dropped(&self, reason: Reason) {
        self.dropped_many(reason, 1);
    }

    /// Adds packets that were dropped for this reason.
    pub fn dropped_many(&self, reason: Reason, packets: usize) {
        if let Some(counter) = self.drops.get(reason.index()) {
            add(counter, packets);
        }
    }

    #[cfg(test)]
    pub(crate) fn all_drops(&self) -> u64 {
        self.drops
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum()
    }

    /// The packets dropped for a reason.
    pub fn drops(&self, reason: Reason) -> u64 {
        self.drops
            .get(reason.index())
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Adds to a counter, without an order between counters (relaxed).
pub fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// Counters of WireGuard handshakes. They stay 0 with another framing.
#[derive(Debug, Default)]
pub struct Handshakes {
    /// Whether there can be any: the engine encrypts.
    pub happen: AtomicBool,
    /// Initiations sent, each repetition counted.
    pub initiated: AtomicU64,
    /// Initiations of peers that were answered.
    pub answered: AtomicU64,
    /// Completed handshakes, of either side.
    pub completed: AtomicU64,
    /// Handshakes given up after 90 s without a session.
    pub failed: AtomicU64,
    /// Messages answered with a cookie because there were too many.
    pub cookies: AtomicU64,
}

impl Handshakes {
    /// All counts by name; `None` if the engine does not encrypt.
    pub fn counts(&self) -> Option<[(&'static str, u64); 5]> {
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
    /// Handshake counters; zero unless the engine encrypts.
    pub handshakes: Handshakes,
    /// ICMP errors sent to pods.
    pub icmp: AtomicU64,
    /// Segmented sends that had to be repeated one datagram at a time.
    pub unsegmented: AtomicU64,
    /// How often a thread had gone ahead of others for as long as it may.
    pub budgets_spent: AtomicU64,
    /// The active mode (`offload`, `mmsg` or `plain`) and the granted offloads.
    pub mode: std::sync::Mutex<String>,
}
