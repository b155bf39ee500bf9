//! Schedule of the probes that a node sends to its peers. A node sends at most about four scheduled probes per second, regardless of the size of the cluster.
//!
//! In small clusters, a node probes all peers in turn. In large clusters, half of the scheduled probes go to a fixed
//! sample of peers, and the other half go to all peers in turn. A node and the peers in its sample often probe each
//! other.

use crate::who::mix;
use std::time::Duration;

/// Interval between two probes of a peer in small clusters. It is longer in larger clusters, because [`PER_SECOND`]
/// limits the number of probes.
pub(crate) const MIN_CYCLE: Duration = Duration::from_secs(5);
/// Maximum number of scheduled probes that a node without a sample sends per second.
const PER_SECOND: u32 = 4;
/// Number of paths above which half of the scheduled probes go to a sample.
pub const MAX_UNSAMPLED: usize = 200;
pub const SAMPLE_SIZE: usize = 16;
/// Number of hash rings. A node's sample contains the node's two neighbours on each ring.
const RINGS: u64 = SAMPLE_SIZE as u64 / 2;
/// Interval between two probes of a path in the sample.
pub const SAMPLE_CYCLE: Duration = Duration::from_secs(8);
/// Minimum time between two scheduled probes that go to all peers in turn instead of the sample.
const MIN_WALK_STEP: Duration = Duration::from_millis(500);
/// Maximum number of scheduled probes per second that all nodes on a link together send to all peers in turn. It
/// applies only to nodes with a sample, and not to the probes of the sample. If the kernel's neighbour table is too
/// small for a link, each probe to the next peer causes a broadcast there (ARP, neighbour discovery).
const WALKS_A_LINK: u32 = 500;
/// Minimum time between two probes that are as long as the MTU.
const LONG_QUESTION_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of a node's peers for which one scheduled probe may use both paths. If a node has more peers, each
/// scheduled probe uses either the overlay or the underlay.
const MAX_BOTH_PATHS: usize = 16;
/// Number of scheduled probes to a peer from one probe over the underlay to the next.
const UNDERLAY_INTERVAL: u32 = 4;

/// The time in which this node probes each of `peers` peers once. `on_link` is the number of peers that share a link
/// with this node.
pub fn cycle(peers: usize, on_link: usize) -> Duration {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    if peers <= MAX_UNSAMPLED {
        return MIN_CYCLE.max(Duration::from_secs(1) * count(peers) / PER_SECOND);
    }
    let of_link = Duration::from_secs(1).saturating_mul(count(on_link)) / WALKS_A_LINK;
    of_link.max(MIN_WALK_STEP).saturating_mul(count(peers))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnPaths {
    pub overlay: bool,
    pub underlay: bool,
}

/// Every fourth scheduled probe of a peer uses the underlay, at an offset that differs between peers.
pub fn turn_paths(who: u64, turn: u32, peers: usize) -> TurnPaths {
    let underlay =
        mix([who, 0, 0]).wrapping_add(u64::from(turn)).is_multiple_of(u64::from(UNDERLAY_INTERVAL));
    TurnPaths { overlay: !underlay || peers <= MAX_BOTH_PATHS, underlay }
}

/// A schedule that probes each peer once per cycle, at even intervals. The order of the peers differs between nodes and between cycles.
///
/// ```
/// use probing::schedule::Walk;
/// use std::time::Duration;
///
/// let mut walk = Walk::new(1, Duration::ZERO);
/// let peers = || [("node-2", 2_u64), ("node-3", 3), ("node-4", 4)].into_iter();
/// let mut probed = Vec::new();
/// for _ in 0..3 {
///     let due = walk.next();
///     probed.extend(walk.turn(due, peers));
/// }
/// probed.sort();
/// assert_eq!(probed, ["node-2", "node-3", "node-4"]);
/// ```
#[derive(Clone, Debug)]
pub struct Walk<K> {
    own: u64,
    number: u64,
    rest: Vec<K>,
    next: Duration,
    step: Duration,
    on_link: usize,
}

impl<K: Copy> Walk<K> {
    /// The first probe is due within a second. Its delay differs between nodes, so that nodes that start together do
    /// not probe together.
    pub fn new(own: u64, now: Duration) -> Self {
        let next = now + Duration::from_millis(mix([own, 0, 2]) % 1000);
        Self { own, number: 0, rest: Vec::new(), next, step: MIN_CYCLE, on_link: 0 }
    }

    /// Takes effect with the next cycle.
    pub fn set_on_link(&mut self, on_link: usize) {
        self.on_link = on_link;
    }

    pub fn next(&self) -> Duration {
        self.next
    }

    /// Postpones all scheduled probes by the time for which the kernel did not schedule this program.
    pub fn delay(&mut self, by: Duration) {
        self.next += by;
    }

    /// The next peer if a scheduled probe is due. Calls `peers`, which yields all peers with their numbers, only once
    /// per cycle.
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

    /// Inserts a new peer at a pseudo-random position in the rest of the cycle.
    pub fn add(&mut self, key: K, who: u64) {
        let Some(rest) = u64::try_from(self.rest.len()).ok().filter(|rest| *rest > 0) else {
            return;
        };
        let at = usize::try_from(mix([self.own, who, self.number]) % (rest + 1)).unwrap_or(0);
        self.rest.insert(at.min(self.rest.len()), key);
    }

    pub fn retain(&mut self, stays: impl FnMut(&K) -> bool) {
        self.rest.retain(stays);
    }

    fn begin(&mut self, peers: impl Iterator<Item = (K, u64)>) {
        self.number += 1;
        let mut order: Vec<(u64, K)> =
            peers.map(|(key, who)| (mix([self.own, who, self.number]), key)).collect();
        order.sort_unstable_by_key(|(hash, _)| *hash);
        self.rest.clear();
        self.rest.extend(order.into_iter().map(|(_, key)| key));
        let peers = u32::try_from(self.rest.len()).unwrap_or(u32::MAX).max(1);
        // Varies the step by up to a tenth, so that the cycles of several nodes drift apart.
        let tenths = u32::try_from(mix([self.own, self.number, 1]) % 201).unwrap_or(100);
        self.step = cycle(self.rest.len(), self.on_link) * (900 + tenths) / 1000 / peers;
    }
}

/// The paths that this node probes every [`SAMPLE_CYCLE`], regardless of the size of the cluster. The sample is empty
/// if the node has at most [`MAX_UNSAMPLED`] paths, because it then probes all paths often.
///
/// Each ring contains all nodes in the order of their hashes. The hash function differs between rings. A node probes
/// its neighbours on each ring, and they also probe the node. A node that joins or leaves changes only the samples of
/// its neighbours.
#[derive(Clone, Debug)]
pub struct Sample<K> {
    members: Vec<K>,
    place: usize,
    next: Duration,
    round: u64,
}

/// A path to a peer, with the numbers of both ends as [`crate::who::short`] computes them.
#[derive(Clone, Copy, Debug)]
pub struct Ends<K> {
    pub key: K,
    /// This node's number in the address family of the path.
    pub own: u32,
    pub other: u32,
}

impl<K: Copy + Ord> Sample<K> {
    pub fn new() -> Self {
        Self { members: Vec::new(), place: 0, next: Duration::ZERO, round: 0 }
    }

    pub fn choose(&mut self, now: Duration, paths: &[Ends<K>]) {
        if paths.len() <= MAX_UNSAMPLED {
            self.members.clear();
            return;
        }
        if self.members.is_empty() {
            self.next = now + SAMPLE_CYCLE / Self::size();
        }
        let mut families: Vec<u32> = paths.iter().map(|path| path.own).collect();
        families.sort_unstable();
        families.dedup();
        let rings = families.iter().cycle().zip(0..RINGS);
        let mut members: Vec<K> =
            rings.flat_map(|(own, ring)| neighbours(paths, *own, ring)).collect();
        members.sort_unstable();
        members.dedup();
        self.members = members;
    }

    pub fn members(&self) -> &[K] {
        &self.members
    }

    fn size() -> u32 {
        u32::try_from(SAMPLE_SIZE).unwrap_or(1)
    }

    /// True if a path is in the sample, or if no sample exists because this node probes all paths often.
    pub fn has(&self, key: &K) -> bool {
        self.members.is_empty() || self.members.contains(key)
    }

    pub fn next(&self) -> Option<Duration> {
        (!self.members.is_empty()).then_some(self.next)
    }

    /// Postpones all scheduled probes by the time for which the kernel did not schedule this program.
    pub fn delay(&mut self, by: Duration) {
        self.next += by;
    }

    /// The next path, if a scheduled probe is due.
    pub fn turn(&mut self, now: Duration) -> Option<K> {
        if now < self.next {
            return None;
        }
        let key = self.members.get(self.place).or(self.members.first()).copied()?;
        self.place = (self.place + 1) % self.members.len();
        self.round = self.round.wrapping_add(1);
        // Varies the step by up to a tenth, as the walk does.
        let tenths = u32::try_from(mix([self.round, 4, 1]) % 201).unwrap_or(100);
        let step = SAMPLE_CYCLE / Self::size() * (900 + tenths) / 1000;
        self.next = (self.next + step).max(now);
        Some(key)
    }
}

/// The neighbours before and after a node on one ring.
fn neighbours<K: Copy>(paths: &[Ends<K>], own: u32, ring: u64) -> impl Iterator<Item = K> {
    let place = |number: u32| mix([number.into(), ring, 3]);
    let here = place(own);
    let others = || {
        let of_family = paths.iter().filter(move |path| path.own == own);
        of_family.map(move |path| (place(path.other), path.key))
    };
    let after = others().min_by_key(|(there, _)| there.wrapping_sub(here));
    let before = others().min_by_key(|(there, _)| here.wrapping_sub(*there));
    after.into_iter().chain(before).map(|(_, key)| key)
}

impl<K: Copy + Ord> Default for Sample<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// Decides which probes are as long as the MTU: one probe every two seconds, to each peer in turn.
#[derive(Clone, Debug)]
pub(crate) struct FullSize {
    last: Option<Duration>,
    round: u32,
}

impl Default for FullSize {
    fn default() -> Self {
        Self { last: None, round: 1 }
    }
}

impl FullSize {
    /// `done` is the number of the last rotation (one long probe to each peer) in which the peer got its long probe.
    /// `waits` tells whether another peer still waits for its long probe in a rotation.
    pub(crate) fn turn(
        &mut self,
        now: Duration,
        done: &mut u32,
        waits: impl FnOnce(u32) -> bool,
    ) -> bool {
        if self.last.is_some_and(|last| now.saturating_sub(last) < LONG_QUESTION_INTERVAL) {
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
        for (peers, on_link, seconds) in [
            (0, 0, 5),
            (2, 2, 5),
            (20, 20, 5),
            (100, 100, 25),
            (200, 200, 50),
            (1000, 0, 500),
            (1000, 250, 500),
            (1000, 1000, 2000),
            (5000, 0, 2500),
            (5000, 5000, 50_000),
        ] {
            assert_eq!(
                cycle(peers, on_link),
                Duration::from_secs(seconds),
                "{peers}, {on_link} on the link"
            );
        }
    }

    fn ends(own: u32, others: impl Iterator<Item = u32>) -> Vec<Ends<u32>> {
        let number = |node: u32| u32::try_from(mix([node.into(), 1, 2]) >> 32).unwrap();
        others.map(|other| Ends { key: other, own: number(own), other: number(other) }).collect()
    }

    fn sample(own: u32, others: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut sample = Sample::new();
        sample.choose(Duration::ZERO, &ends(own, others));
        sample.members
    }

    #[test]
    fn each_node_is_in_the_samples_of_those_in_its_own() {
        const NODES: u32 = 500;
        let others = |own: u32| (0..NODES).filter(move |other| *other != own);
        let samples: Vec<Vec<u32>> = (0..NODES).map(|own| sample(own, others(own))).collect();
        for (own, members) in (0..NODES).zip(&samples) {
            // A node may be a neighbour on two rings.
            assert!((SAMPLE_SIZE - 3..=SAMPLE_SIZE).contains(&members.len()), "{members:?}");
            for other in members {
                assert!(samples[*other as usize].contains(&own), "{own} and {other}");
            }
        }
        // A new node changes only the samples of its neighbours.
        let changed = (0..NODES).filter(|own| {
            let after = sample(*own, others(*own).chain([NODES]));
            after != samples[*own as usize]
        });
        assert!(changed.count() <= SAMPLE_SIZE);
    }

    #[test]
    fn both_families_have_half_of_the_sample() {
        let mut paths = ends(0, 1..400);
        for path in ends(1000, 1001..1400) {
            paths.push(path);
        }
        let mut sample = Sample::new();
        sample.choose(Duration::ZERO, &paths);
        let v6 = sample.members.iter().filter(|key| **key > 1000).count();
        assert_eq!((v6, sample.members.len()), (8, 16));
    }

    #[test]
    fn sample_is_asked_every_eight_seconds() {
        let mut sample = Sample::new();
        sample.choose(Duration::ZERO, &ends(0, 1..201));
        assert!(sample.next().is_none() && sample.turn(Duration::from_secs(9)).is_none());
        assert!(sample.has(&3), "the node probes all paths often");
        sample.choose(Duration::ZERO, &ends(0, 1..1000));
        let mut asked: BTreeMap<u32, Vec<Duration>> = BTreeMap::new();
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(80) {
            now = sample.next().unwrap();
            let key = sample.turn(now).unwrap();
            asked.entry(key).or_default().push(now);
            assert!(sample.turn(now).is_none(), "turns are apart");
        }
        assert_eq!(asked.len(), sample.members.len());
        for times in asked.values() {
            assert!((9..=11).contains(&times.len()), "{times:?}");
            assert!(
                times.windows(2).all(|pair| pair[1] - pair[0] < Duration::from_millis(8900)),
                "{times:?}"
            );
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
            assert!(took > Duration::from_secs(22) && took < Duration::from_secs(29), "{took:?}");
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
                *counts.entry(turns.iter().position(|paths| paths.underlay)).or_insert(0) += 1;
            }
            assert_eq!(counts.len(), 4, "not all peers at once: {counts:?}");
        }
    }

    #[test]
    fn long_questions_go_to_all_peers_in_turn() {
        let mut full = FullSize::default();
        let mut done = [0u32; 5];
        let mut long = [0; 5];
        // Ten probes a second to five peers, for a minute.
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
            long.iter().all(|count| (total / 5 - 1..=total / 5 + 1).contains(count)),
            "{long:?}"
        );
    }
}
