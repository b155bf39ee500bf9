//! Counters of the engine. The engine's threads write the counters, and other threads read the counters without locks.

use crate::reason::Reason;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters of one direction.
#[derive(Debug)]
pub struct Direction {
    /// Inner packets that the engine forwarded.
    pub packets: AtomicU64,
    /// Number of bytes of the forwarded inner packets, including IP headers.
    pub bytes: AtomicU64,
    /// Batches of packets: one per receive call, or per iteration of the sending thread's loop.
    pub batches: AtomicU64,
    /// Units that carried the inner packets counted in `packets`: a unit is a GSO packet or a single packet that the engine wrote or sent.
    pub units: AtomicU64,
    /// Reads that failed for a reason other than an empty queue.
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
    /// Counts one packet that the engine dropped for this reason.
    pub fn dropped(&self, reason: Reason) {
        self.dropped_many(reason, 1);
    }

    /// Adds a number of packets that the engine dropped for this reason.
    pub fn dropped_many(&self, reason: Reason, packets: usize) {
        if let Some(counter) = self.drops.get(reason.index()) {
            add(counter, packets);
        }
    }

    #[cfg(test)]
    pub(crate) fn all_drops(&self) -> u64 {
        self.drops.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of packets that the engine dropped for a reason.
    pub fn drops(&self, reason: Reason) -> u64 {
        self.drops.get(reason.index()).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Adds to a counter with relaxed ordering, which implies no order between different counters.
pub fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// Counters of WireGuard handshakes. The counters stay 0 unless the engine encrypts.
#[derive(Debug, Default)]
pub struct Handshakes {
    /// Whether the engine encrypts, so that handshakes can occur.
    pub happen: AtomicBool,
    /// Initiations sent, including repeated initiations.
    pub initiated: AtomicU64,
    /// Initiations of peers to which this node responded.
    pub answered: AtomicU64,
    /// Completed handshakes that either side initiated.
    pub completed: AtomicU64,
    /// Handshakes abandoned after 90 s without a session.
    pub failed: AtomicU64,
    /// Cookie replies sent, which require the sender of a handshake message to prove its address.
    pub cookies: AtomicU64,
}

impl Handshakes {
    /// Returns the handshake counts with their names, or `None` if the engine does not encrypt.
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
    /// Counters of packets from pods to peers.
    pub sent: Direction,
    /// Counters of packets from peers to pods.
    pub received: Direction,
    /// Handshake counters; zero unless the engine encrypts.
    pub handshakes: Handshakes,
    /// ICMP errors sent to pods.
    pub icmp: AtomicU64,
    /// Number of segmented sends that the engine had to repeat one datagram at a time.
    pub unsegmented: AtomicU64,
    /// Number of times that a thread lost its raised priority because a time budget ran out.
    pub budgets_spent: AtomicU64,
    /// The active mode (`offload`, `mmsg` or `plain`) and the granted offloads.
    pub mode: parking_lot::Mutex<String>,
}
