//! Deadlines of pending work for each peer: rounds of probes, retries and MTU searches.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Peers, ordered by the deadlines of their next work.
#[derive(Debug, Default)]
pub(super) struct Queue(BTreeSet<(Duration, IpNet)>);

impl Queue {
    pub(super) fn insert(&mut self, at: Duration, key: IpNet) {
        self.0.insert((at, key));
    }

    pub(super) fn remove(&mut self, at: Duration, key: IpNet) {
        self.0.remove(&(at, key));
    }

    pub(super) fn first(&self) -> Option<Duration> {
        self.0.first().map(|(at, _)| *at)
    }

    /// The peer with the earliest deadline, if it has passed.
    pub(super) fn due(&self, now: Duration) -> Option<IpNet> {
        let (at, key) = self.0.first()?;
        (*at <= now).then_some(*key)
    }

    /// Removes the peer with the earliest deadline, if it has passed.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<IpNet> {
        let key = self.due(now)?;
        self.0.pop_first();
        Some(key)
    }

    #[cfg(any(test, feature = "prober"))]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn delay(&mut self, by: Duration) {
        self.0 = std::mem::take(&mut self.0).into_iter().map(|(at, key)| (at + by, key)).collect();
    }
}

/// Priority of a peer among the peers that wait for another round of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// The search for a common fault probes this peer. The verdict on it affects all peers.
    Decisive,
    /// One round of probes has already shown a changed state. The next round confirms or refutes the change.
    Undecided,
    /// The node probes this peer often to keep its verdict recent.
    Sampled,
    /// The node probed this peer in its rotation through all peers.
    Walked,
}

/// Peers that wait for a round with all probes, each at most once.
#[derive(Debug, Default)]
pub(super) struct Retries {
    order: BTreeSet<(Urgency, Duration, IpNet)>,
    places: BTreeMap<IpNet, (Urgency, Duration)>,
}

impl Retries {
    /// If the peer already waits for a round of probes, the more urgent entry remains.
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

    /// The waiting peer with the earliest deadline for each urgency.
    fn heads(&self) -> impl Iterator<Item = (Urgency, Duration, IpNet)> {
        use Urgency::{Decisive, Sampled, Undecided, Walked};
        [Decisive, Undecided, Sampled, Walked].into_iter().filter_map(|urgency| self.head(urgency))
    }

    pub(super) fn first_of(&self, urgency: Urgency) -> Option<Duration> {
        self.head(urgency).map(|(_, at, _)| at)
    }

    pub(super) fn first(&self) -> Option<Duration> {
        self.heads().map(|(_, at, _)| at).min()
    }

    /// The most urgent peer whose deadline has passed.
    pub(super) fn due(&self, now: Duration) -> Option<(Urgency, IpNet)> {
        let (urgency, _, key) = self.heads().find(|(_, at, _)| *at <= now)?;
        Some((urgency, key))
    }

    #[cfg(any(test, feature = "prober"))]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.places.retain(|key, _| stays(key));
        self.order.retain(|(.., key)| stays(key));
    }
}

#[derive(Debug, Default)]
pub(super) struct Deadlines {
    pub closes: Queue,
    pub broken: Retries,
    /// Peers that need another round, because a probe got lost or the state has changed.
    pub again: Retries,
    pub mtu_searches: Queue,
}

impl Deadlines {
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
        assert_eq!(popped, [key(2), key(4), key(1)], "key 3 is not due yet");
        assert_eq!(retries.first(), Some(s(9)));
        retries.retain(|_| false);
        assert!(retries.first().is_none() && !retries.contains(&key(3)));
    }

    #[test]
    fn peer_is_due_from_its_deadline_on() {
        let (s, mut queue) = (Duration::from_secs, Queue::default());
        let [first, second] = [1, 2].map(|n| IpNet::from(std::net::IpAddr::from([10, 5, n, 0])));
        queue.insert(s(2), second);
        queue.insert(s(1), first);
        assert_eq!((queue.due(s(0)), queue.due(s(1))), (None, Some(first)));
        queue.delay(s(5));
        assert_eq!((queue.pop_due(s(5)), queue.first()), (None, Some(s(6))));
        assert_eq!((queue.pop_due(s(7)), queue.pop_due(s(7))), (Some(first), Some(second)));
    }
}
