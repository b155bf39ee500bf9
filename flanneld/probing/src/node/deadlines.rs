//! Deadlines of the work that is due for peers.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Peers, ordered by the time of their next work.
#[derive(Debug, Default)]
pub(super) struct Queue(BTreeSet<(Duration, IpNet)>);

impl Queue {
    pub(super) fn insert(&mut self, at: Duration, key: IpNet) {
        self.0.insert((at, key));
    }

    pub(super) fn remove(&mut self, at: Duration, key: IpNet) {
        self.0.remove(&(at, key));
    }

    /// Returns the time at which the first peer is due.
    pub(super) fn first(&self) -> Option<Duration> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Returns the first peer that is due.
    pub(super) fn due(&self, now: Duration) -> Option<IpNet> {
        let (at, key) = self.0.first()?;
        (*at <= now).then_some(*key)
    }

    /// Removes and returns the first peer that is due.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<IpNet> {
        let key = self.due(now)?;
        self.0.pop_first();
        Some(key)
    }

    #[cfg(any(test, feature = "prober"))]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Postpones all peers.
    pub(super) fn delay(&mut self, by: Duration) {
        self.0 = std::mem::take(&mut self.0)
            .into_iter()
            .map(|(at, key)| (at + by, key))
            .collect();
    }
}

/// Priority of a peer among the peers that wait for another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// A peer of the search for a common fault, whose result decides about all peers.
    Decisive,
    /// A peer for which a round has already shown a change. One more round confirms the change as a verdict.
    Undecided,
    /// A peer that the node probes often to keep the peer's verdict recent.
    Sampled,
    /// A peer that the node probed in its rotation through all peers.
    Walked,
}

/// Peers that wait for a whole round, each at most once.
#[derive(Debug, Default)]
pub(super) struct Retries {
    order: BTreeSet<(Urgency, Duration, IpNet)>,
    places: BTreeMap<IpNet, (Urgency, Duration)>,
}

impl Retries {
    /// Adds a peer. A peer that already waits keeps the earlier of its two places in the order.
    pub(super) fn insert(&mut self, urgency: Urgency, at: Duration, key: IpNet) {
        let new = (urgency, at);
        let old = self.places.get(&key).copied();
        if old.is_some_and(|old| old <= new) {
            return;
        }
        self.remove(&key);
        self.places.insert(key, new);
        self.order.insert((urgency, at, key));
    }

    pub(super) fn remove(&mut self, key: &IpNet) {
        if let Some((urgency, at)) = self.places.remove(key) {
            self.order.remove(&(urgency, at, *key));
        }
    }

    pub(super) fn contains(&self, key: &IpNet) -> bool {
        self.places.contains_key(key)
    }

    fn head(&self, urgency: Urgency) -> Option<(Urgency, Duration, IpNet)> {
        let least = IpNet::V4(ipnet::Ipv4Net::default());
        let head = self.order.range((urgency, Duration::ZERO, least)..).next();
        head.copied().filter(|(of, ..)| *of == urgency)
    }

    /// Returns the first peer of each urgency.
    fn heads(&self) -> impl Iterator<Item = (Urgency, Duration, IpNet)> {
        use Urgency::{Decisive, Sampled, Undecided, Walked};
        [Decisive, Undecided, Sampled, Walked]
            .into_iter()
            .filter_map(|urgency| self.head(urgency))
    }

    /// Returns the time at which the first peer of this urgency is due.
    pub(super) fn first_of(&self, urgency: Urgency) -> Option<Duration> {
        self.head(urgency).map(|(_, at, _)| at)
    }

    /// Returns the time at which the first peer is due.
    pub(super) fn first(&self) -> Option<Duration> {
        self.heads().map(|(_, at, _)| at).min()
    }

    /// Returns the most urgent peer that is due.
    pub(super) fn due(&self, now: Duration) -> Option<(Urgency, IpNet)> {
        let (urgency, _, key) = self.heads().find(|(_, at, _)| *at <= now)?;
        Some((urgency, key))
    }

    #[cfg(any(test, feature = "prober"))]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Keeps only the peers for which `stays` returns true.
    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.places.retain(|key, _| stays(key));
        self.order.retain(|(.., key)| stays(key));
    }
}

/// All deadlines of peers.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// End times of open rounds.
    pub closes: Queue,
    /// Times of the next rounds of peers with confirmed faults.
    pub broken: Retries,
    /// Peers that get another round, because a probe got lost or the state has changed.
    pub again: Retries,
    /// Times of the next steps of MTU searches.
    pub mtu_searches: Queue,
}

impl Deadlines {
    /// Keeps only the peers for which `stays` returns true.
    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        for queue in [&mut self.closes, &mut self.mtu_searches] {
            queue.0.retain(|(_, key)| stays(key));
        }
        self.broken.retain(&stays);
        self.again.retain(stays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_waits_once_and_the_most_urgent_goes_first() {
        let key = |number: u8| IpNet::from(std::net::IpAddr::from([10, 5, number, 0]));
        let (s, mut retries) = (Duration::from_secs, Retries::default());
        retries.insert(Urgency::Walked, s(1), key(1));
        retries.insert(Urgency::Walked, s(1), key(1));
        retries.insert(Urgency::Sampled, s(2), key(2));
        retries.insert(Urgency::Undecided, s(9), key(3));
        retries.insert(Urgency::Walked, s(1), key(4));
        retries.insert(Urgency::Sampled, s(3), key(4));
        retries.insert(Urgency::Walked, s(0), key(4));
        assert_eq!(retries.first(), Some(s(1)));
        assert_eq!(retries.due(s(0)), None);
        let pop = || {
            let (_, key) = retries.due(s(5))?;
            retries.remove(&key);
            Some(key)
        };
        let popped: Vec<_> = std::iter::from_fn(pop).collect();
        assert_eq!(popped, [key(2), key(4), key(1)], "the undecided is not due");
        assert_eq!(retries.first(), Some(s(9)));
        retries.retain(|_| false);
        assert!(retries.first().is_none() && !retries.contains(&key(3)));
    }
}
