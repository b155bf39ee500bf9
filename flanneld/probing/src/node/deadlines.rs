//! When something is due for a peer.

use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;

/// Peers in the order in which something is due for them.
#[derive(Debug, Default)]
pub(super) struct Queue(BTreeSet<(Duration, IpNet)>);

impl Queue {
    pub(super) fn insert(&mut self, at: Duration, key: IpNet) {
        self.0.insert((at, key));
    }

    pub(super) fn remove(&mut self, at: Duration, key: IpNet) {
        self.0.remove(&(at, key));
    }

    /// Returns when the first is due.
    pub(super) fn first(&self) -> Option<Duration> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.first().is_some_and(|at| at <= now)
    }

    /// Takes the first peer that is due.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<IpNet> {
        self.is_due(now)
            .then(|| self.0.pop_first())
            .flatten()
            .map(|(_, key)| key)
    }

    pub(super) fn contains(&self, key: &IpNet) -> bool {
        self.0.iter().any(|(_, other)| other == key)
    }

    #[cfg(any(test, feature = "prober"))]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Moves all of them to later.
    pub(super) fn delay(&mut self, by: Duration) {
        self.0 = std::mem::take(&mut self.0)
            .into_iter()
            .map(|(at, key)| (at + by, key))
            .collect();
    }
}

/// What is due for peers.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Rounds whose time is over.
    pub closes: Queue,
    /// Rounds that repeat what was lost.
    pub again: Queue,
    /// When the next size of an MTU search is asked.
    pub mtu_searches: Queue,
}

impl Deadlines {
    /// Keeps only the peers that stay.
    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        for queue in [&mut self.closes, &mut self.again, &mut self.mtu_searches] {
            queue.0.retain(|(_, key)| stays(key));
        }
    }
}
