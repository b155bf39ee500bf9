//! Rate limits of ICMP errors: one for all destinations together, and one for each.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// For all destinations together: errors per second, and the burst.
const ALL: Rate = Rate::new(100, 50);
/// For one destination: errors per second, and the burst.
const EACH: Rate = Rate::new(10, 10);
/// Destinations share buckets by hash. So the table does not grow in a flood, and a flood affects few other
/// destinations.
const SLOTS: usize = 1024;

/// The spacing between events in nanoseconds. An event that is early by more than `slack` is rejected.
pub struct Rate {
    spacing: u64,
    slack: u64,
}

impl Rate {
    #[must_use]
    pub const fn new(per_second: u64, burst: u64) -> Self {
        let spacing = 1_000_000_000 / per_second;
        Self { spacing, slack: spacing * (burst - 1) }
    }

    /// Takes a token at `now`, and returns the new `turn`, when the bucket is full again. `None` if the event
    /// is too early. A `turn` of zero means a full bucket.
    #[must_use]
    pub fn next_turn_if_allowed(&self, turn: u64, now: u64) -> Option<u64> {
        let turn = turn.max(now);
        (turn - now <= self.slack).then(|| turn.saturating_add(self.spacing))
    }
}

/// The rate limits of an engine.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// Senders cannot predict which destinations share a bucket.
    hasher: RandomState,
    all: u64,
    each: Box<[u64]>,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { hasher: RandomState::new(), all: 0, each: vec![0; SLOTS].into() }
    }
}

impl Buckets {
    /// Whether an error may go to `destination` at `now`, a time of a monotonic clock. Only then it takes a
    /// token.
    pub fn allow(&mut self, destination: IpAddr, now: Duration) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let slot = self.slot(destination);
        let Some(each) = self.each.get_mut(slot) else {
            return false;
        };
        // If one limit rejects an error, the other loses no token. A noisy destination therefore does not use up the limit for all.
        let (Some(one), Some(all)) =
            (EACH.next_turn_if_allowed(*each, now), ALL.next_turn_if_allowed(self.all, now))
        else {
            return false;
        };
        *each = one;
        self.all = all;
        true
    }

    fn slot(&self, destination: IpAddr) -> usize {
        self.hasher.hash_one(destination) as usize % SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn a_flood_is_limited_to_a_hundred_a_second() {
        let mut buckets = Buckets::default();
        let passed = (0..1_000_000u64)
            .filter(|n| buckets.allow(ip(*n as u32), Duration::from_micros(n * 10)))
            .count();
        assert_eq!(passed, 50 + 999);
    }

    #[test]
    fn the_burst_is_available_again_after_a_pause() {
        let mut buckets = Buckets::default();
        let burst = |buckets: &mut Buckets, at| {
            (0..100).filter(|_| buckets.allow(ip(7), Duration::from_secs(at))).count()
        };
        assert_eq!(
            [
                burst(&mut buckets, 0),
                burst(&mut buckets, 0),
                burst(&mut buckets, 1),
                burst(&mut buckets, 1_000_000)
            ],
            [10, 0, 10, 10]
        );
        // At the end of its range, the clock saturates and does not wrap.
        assert!(burst(&mut Buckets::default(), u64::MAX) <= 100);
    }

    #[test]
    fn destinations_spread() {
        let buckets = Buckets::default();
        let v4: std::collections::BTreeSet<usize> =
            (0..1024).map(|n| buckets.slot(ip(0x0a05_0000 + n))).collect();
        let v6: std::collections::BTreeSet<usize> = (0..1024u128)
            .map(|n| buckets.slot(IpAddr::V6((0xfd00 << 112 | n << 64 | 1).into())))
            .collect();
        assert!(v4.len() > 550 && v6.len() > 550, "{} {}", v4.len(), v6.len());
    }

    proptest! {
        #[test]
        fn no_second_has_more_than_the_limits(gaps in vec((0u64..30_000_000, 0u32..30), 1..300)) {
            let mut buckets = Buckets::default();
            let mut now = 0;
            let mut passed: VecDeque<(u64, u32)> = VecDeque::new();
            for (gap, destination) in gaps {
                now += gap;
                while passed.front().is_some_and(|(at, _)| at + 1_000_000_000 <= now) {
                    passed.pop_front();
                }
                if buckets.allow(ip(destination), Duration::from_nanos(now)) {
                    passed.push_back((now, destination));
                }
                let mut each = HashMap::new();
                passed.iter().for_each(|(_, destination)| *each.entry(destination).or_insert(0) += 1);
                prop_assert!(passed.len() <= 150);
                prop_assert!(each.values().all(|count| *count <= 20));
            }
        }
    }
}
