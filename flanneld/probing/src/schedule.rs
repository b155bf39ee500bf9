//! When which peer is asked: constant cost a node, whatever the size of the cluster.

use crate::who::mix;
use std::time::Duration;

/// The shortest cycle.
pub(crate) const SHORTEST: Duration = Duration::from_secs(5);
/// Questions a second in large clusters.
const PER_SECOND: u32 = 4;
/// How often a question is as long as the MTU.
const FULL_EVERY: Duration = Duration::from_secs(2);
/// Up to so many peers are asked beside the overlay network in addition, and not instead.
const MAX_EXTRA_PATHS: usize = 16;
/// Every so many turns of a peer go beside the overlay network.
const UNDERLAY_EVERY: u32 = 4;

/// How long it takes to ask each peer once.
pub fn cycle(paths: usize) -> Duration {
    let paths = u32::try_from(paths).unwrap_or(u32::MAX);
    SHORTEST.max(Duration::from_secs(1) * paths / PER_SECOND)
}

/// The ways by which a turn asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Through the overlay network.
    pub overlay: bool,
    /// Beside it.
    pub underlay: bool,
}

/// The ways of a peer's turn: every fourth turn goes beside the overlay network, not the same one for all peers.
pub fn ways(who: u64, turn: u32, paths: usize) -> Ways {
    let underlay = mix([who, 0, 0])
        .wrapping_add(u64::from(turn))
        .is_multiple_of(u64::from(UNDERLAY_EVERY));
    Ways {
        overlay: !underlay || paths <= MAX_EXTRA_PATHS,
        underlay,
    }
}

/// The walk over the peers: an order of its own for each node and cycle, evenly over the cycle.
#[derive(Clone, Debug)]
pub struct Walk<K> {
    own: u64,
    number: u64,
    rest: Vec<K>,
    next: Duration,
    step: Duration,
}

impl<K: Copy> Walk<K> {
    /// Begins within a second: nodes that start together do not ask together.
    pub fn new(own: u64, now: Duration) -> Self {
        let next = now + Duration::from_millis(mix([own, 0, 2]) % 1000);
        Self {
            own,
            number: 0,
            rest: Vec::new(),
            next,
            step: SHORTEST,
        }
    }

    /// When the next turn is due.
    pub fn next(&self) -> Duration {
        self.next
    }

    /// Does nothing for so long: time in which this program did not run.
    pub fn delay(&mut self, by: Duration) {
        self.next += by;
    }

    /// The next peer, if one is due. `peers` yields all of them with their numbers, and is asked once a cycle only.
    pub fn turn<I: Iterator<Item = (K, u64)>>(
        &mut self,
        now: Duration,
        peers: impl Fn() -> I,
    ) -> Option<K> {
        if now < self.next {
            return None;
        }
        if self.rest.is_empty() {
            self.begin(peers());
        }
        // Turns that were missed are not caught up.
        self.next = (self.next + self.step).max(now);
        self.rest.pop()
    }

    /// A peer that was not there when the cycle began: somewhere in what is left of it.
    pub fn add(&mut self, key: K, who: u64) {
        let Some(rest) = u64::try_from(self.rest.len()).ok().filter(|rest| *rest > 0) else {
            return;
        };
        let at = usize::try_from(mix([self.own, who, self.number]) % (rest + 1)).unwrap_or(0);
        self.rest.insert(at.min(self.rest.len()), key);
    }

    /// Leaves out peers that are gone.
    pub fn retain(&mut self, stays: impl FnMut(&K) -> bool) {
        self.rest.retain(stays);
    }

    fn begin(&mut self, peers: impl Iterator<Item = (K, u64)>) {
        self.number += 1;
        let mut order: Vec<(u64, K)> = peers
            .map(|(key, who)| (mix([self.own, who, self.number]), key))
            .collect();
        order.sort_unstable_by_key(|(hash, _)| *hash);
        self.rest.clear();
        self.rest.extend(order.into_iter().map(|(_, key)| key));
        let paths = u32::try_from(self.rest.len()).unwrap_or(u32::MAX).max(1);
        // Up to a tenth more or less: cycles of several nodes do not stay together.
        let tenths = u32::try_from(mix([self.own, self.number, 1]) % 201).unwrap_or(100);
        self.step = cycle(self.rest.len()) * (900 + tenths) / 1000 / paths;
    }
}

/// Which questions are as long as the MTU: one in two seconds, in turn over the peers.
#[derive(Clone, Debug)]
pub(crate) struct FullSize {
    last: Option<Duration>,
    round: u32,
}

impl Default for FullSize {
    fn default() -> Self {
        Self {
            last: None,
            round: 1,
        }
    }
}

impl FullSize {
    /// Whether this question is a long one. `done` is the round in which the peer had its last one; `waits` tells whether another peer still has
    /// to get its own of a round.
    pub(crate) fn turn(
        &mut self,
        now: Duration,
        done: &mut u32,
        waits: impl FnOnce(u32) -> bool,
    ) -> bool {
        if self
            .last
            .is_some_and(|last| now.saturating_sub(last) < FULL_EVERY)
        {
            return false;
        }
        if *done == self.round {
            if waits(self.round) {
                return false;
            }
            self.round = self.round.wrapping_add(1).max(1);
        }
        self.last = Some(now);
        *done = self.round;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn cycles_grow_with_the_cluster() {
        for (paths, seconds) in [
            (0, 5),
            (2, 5),
            (20, 5),
            (100, 25),
            (1000, 250),
            (10_000, 2500),
        ] {
            assert_eq!(cycle(paths), Duration::from_secs(seconds), "{paths}");
        }
    }

    #[test]
    fn every_peer_has_one_turn_a_cycle_in_another_order_each_time() {
        let peers: Vec<u32> = (0..100).collect();
        let all = || peers.iter().map(|peer| (*peer, u64::from(*peer) * 77));
        let mut walk = Walk::new(7, Duration::ZERO);
        let mut orders = Vec::new();
        let mut now = Duration::ZERO;
        for _ in 0..3 {
            let begin = now;
            let mut order = Vec::new();
            while order.len() < 100 {
                now = now.max(walk.next());
                order.extend(walk.turn(now, all));
                assert!(walk.turn(now, all).is_none(), "turns are apart");
            }
            let took = now - begin;
            assert!(
                took > Duration::from_secs(22) && took < Duration::from_secs(29),
                "{took:?}"
            );
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, peers);
            orders.push(order);
        }
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    }

    #[test]
    fn missed_turns_are_not_caught_up() {
        let mut walk = Walk::new(7, Duration::ZERO);
        let all = || (0..10).map(|peer| (peer, peer));
        assert!(walk.turn(Duration::from_secs(1), all).is_some());
        let late = Duration::from_secs(1000);
        let turns = std::iter::from_fn(|| walk.turn(late, all)).take(5).count();
        assert!(turns <= 2, "{turns}");
    }

    #[test]
    fn peers_come_and_go_within_a_cycle() {
        let mut walk = Walk::new(7, Duration::ZERO);
        let all = || (0..10u64).map(|peer| (peer, peer));
        let mut now = walk.next();
        let first = walk.turn(now, all).unwrap();
        walk.add(10, 10);
        walk.retain(|peer| *peer != 3);
        let mut seen = vec![first];
        for _ in 0..(if first == 3 { 10 } else { 9 }) {
            now = walk.next();
            seen.extend(walk.turn(now, all));
        }
        seen.sort_unstable();
        let want: Vec<u64> = (0..11).filter(|peer| *peer != 3 || first == 3).collect();
        assert_eq!(seen, want);
    }

    #[test]
    fn every_fourth_turn_goes_beside() {
        for paths in [3, 1000] {
            let mut counts = BTreeMap::new();
            for who in 0..50 {
                let turns: Vec<Ways> = (0..4).map(|turn| ways(who, turn, paths)).collect();
                assert_eq!(turns.iter().filter(|ways| ways.underlay).count(), 1);
                assert_eq!(
                    turns.iter().filter(|ways| ways.overlay).count(),
                    if paths == 3 { 4 } else { 3 }
                );
                *counts
                    .entry(turns.iter().position(|ways| ways.underlay))
                    .or_insert(0) += 1;
            }
            assert_eq!(counts.len(), 4, "not all peers at once: {counts:?}");
        }
    }

    #[test]
    fn long_questions_go_round() {
        let mut full = FullSize::default();
        let mut done = [0u32; 5];
        let mut long = [0; 5];
        // Ten questions a second, over five peers, for a minute.
        for step in 0..600u32 {
            let peer = usize::try_from(step * 3 % 5).unwrap();
            let mut own = done[peer];
            let others = done;
            if full.turn(Duration::from_millis(100) * step, &mut own, |round| {
                others.iter().any(|done| *done != round)
            }) {
                long[peer] += 1;
            }
            done[peer] = own;
        }
        let total: u32 = long.iter().sum();
        assert!((25..=30).contains(&total), "{long:?}");
        assert!(
            long.iter()
                .all(|count| (total / 5 - 1..=total / 5 + 1).contains(count)),
            "{long:?}"
        );
    }
}
