//! When each peer is asked. The cost for a node does not depend on the size of the cluster.

use crate::who::mix;
use std::time::Duration;

/// How often each peer is asked in small clusters; larger ones take longer, by [`PER_SECOND`].
pub(crate) const MIN_CYCLE: Duration = Duration::from_secs(5);
/// Questions a second in large clusters.
const PER_SECOND: u32 = 4;
/// The time between two questions that are as long as the MTU.
const LONG_QUESTION_INTERVAL: Duration = Duration::from_secs(2);
/// Up to this many peers, a turn over the underlay also asks over the overlay.
const MAX_BOTH_PATHS: usize = 16;
/// One in this many turns of a peer goes over the underlay.
const UNDERLAY_INTERVAL: u32 = 4;

/// Returns how long it takes to ask each of this many peers once.
pub fn cycle(peers: usize) -> Duration {
    let peers = u32::try_from(peers).unwrap_or(u32::MAX);
    MIN_CYCLE.max(Duration::from_secs(1) * peers / PER_SECOND)
}

/// The paths over which a turn asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnPaths {
    /// Whether it asks over the overlay.
    pub overlay: bool,
    /// Whether it asks over the underlay.
    pub underlay: bool,
}

/// Returns the paths of a peer's turn. Every fourth turn goes over the underlay, not the same one for all `peers`.
pub fn turn_paths(who: u64, turn: u32, peers: usize) -> TurnPaths {
    let underlay = mix([who, 0, 0])
        .wrapping_add(u64::from(turn))
        .is_multiple_of(u64::from(UNDERLAY_INTERVAL));
    TurnPaths {
        overlay: !underlay || peers <= MAX_BOTH_PATHS,
        underlay,
    }
}

/// The order in which peers have their turns, evenly over a cycle. It differs between nodes and between cycles.
#[derive(Clone, Debug)]
pub struct Walk<K> {
    own: u64,
    number: u64,
    rest: Vec<K>,
    next: Duration,
    step: Duration,
}

impl<K: Copy> Walk<K> {
    /// Creates a walk whose first turn is due within a second, so that nodes that start together do not ask together.
    pub fn new(own: u64, now: Duration) -> Self {
        let next = now + Duration::from_millis(mix([own, 0, 2]) % 1000);
        Self {
            own,
            number: 0,
            rest: Vec::new(),
            next,
            step: MIN_CYCLE,
        }
    }

    /// Returns when the next turn is due.
    pub fn next(&self) -> Duration {
        self.next
    }

    /// Postpones all turns by the time for which this program did not run.
    pub fn delay(&mut self, by: Duration) {
        self.next += by;
    }

    /// Returns the next peer, if one is due. `peers` yields all of them with their numbers, and is called only once a cycle.
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

    /// Adds a new peer somewhere in the rest of the cycle.
    pub fn add(&mut self, key: K, who: u64) {
        let Some(rest) = u64::try_from(self.rest.len()).ok().filter(|rest| *rest > 0) else {
            return;
        };
        let at = usize::try_from(mix([self.own, who, self.number]) % (rest + 1)).unwrap_or(0);
        self.rest.insert(at.min(self.rest.len()), key);
    }

    /// Drops peers that are gone.
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
        let peers = u32::try_from(self.rest.len()).unwrap_or(u32::MAX).max(1);
        // Up to a tenth more or less: cycles of several nodes do not stay together.
        let tenths = u32::try_from(mix([self.own, self.number, 1]) % 201).unwrap_or(100);
        self.step = cycle(self.rest.len()) * (900 + tenths) / 1000 / peers;
    }
}

/// Decides which questions are as long as the MTU: one in two seconds, in turn over the peers.
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
    /// Returns whether this question is a long one. `done` is the round in which the peer had its last one; `waits` returns whether another peer
    /// still waits for its own in a round.
    pub(crate) fn turn(
        &mut self,
        now: Duration,
        done: &mut u32,
        waits: impl FnOnce(u32) -> bool,
    ) -> bool {
        if self
            .last
            .is_some_and(|last| now.saturating_sub(last) < LONG_QUESTION_INTERVAL)
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
    fn cycle_grows_with_the_cluster() {
        for (peers, seconds) in [
            (0, 5),
            (2, 5),
            (20, 5),
            (100, 25),
            (1000, 250),
            (10_000, 2500),
        ] {
            assert_eq!(cycle(peers), Duration::from_secs(seconds), "{peers}");
        }
    }

    #[test]
    fn peer_has_one_turn_a_cycle_in_changing_order() {
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
    fn new_and_gone_peers_change_the_running_cycle() {
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
    fn every_fourth_turn_goes_over_the_underlay() {
        for peers in [3, 1000] {
            let mut counts = BTreeMap::new();
            for who in 0..50 {
                let turns: Vec<TurnPaths> =
                    (0..4).map(|turn| turn_paths(who, turn, peers)).collect();
                assert_eq!(turns.iter().filter(|paths| paths.underlay).count(), 1);
                assert_eq!(
                    turns.iter().filter(|paths| paths.overlay).count(),
                    if peers == 3 { 4 } else { 3 }
                );
                *counts
                    .entry(turns.iter().position(|paths| paths.underlay))
                    .or_insert(0) += 1;
            }
            assert_eq!(counts.len(), 4, "not all peers at once: {counts:?}");
        }
    }

    #[test]
    fn long_questions_go_to_all_peers_in_turn() {
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
