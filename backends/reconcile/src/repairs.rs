//! The objects that flanneld restored recently because another program changed them, with the number of repairs.

use netstate::Key;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// How long a repair is remembered.
const WINDOW: Duration = Duration::from_secs(600);
/// Remembered objects, and remembered repairs of each. If more than 64 objects are in conflict, the
/// remembered ones still reveal it.
const WATCHED: usize = 64;
/// So many repairs of one object are a conflict with another program.
pub(super) const CONFLICT: usize = 5;
/// So long without a repair of an object ends its conflict.
pub(super) const CONFLICT_GAP: Duration = Duration::from_secs(60);

/// The repairs of the last ten minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs(BTreeMap<Key, VecDeque<Instant>>);

impl Repairs {
    /// The objects whose conflict begins with these repairs.
    pub(super) fn note<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a Key>,
        now: Instant,
    ) -> Vec<Key> {
        self.0
            .retain(|_, times| times.back().is_some_and(|last| now.duration_since(*last) < WINDOW));
        let mut conflicts = Vec::new();
        for key in keys.take(WATCHED) {
            if self.0.len() >= WATCHED && !self.0.contains_key(key) {
                let oldest = self.0.iter().min_by_key(|(_, times)| times.back().copied());
                let Some(oldest) = oldest.map(|(key, _)| *key) else { break };
                self.0.remove(&oldest);
            }
            let times = self.0.entry(*key).or_default();
            times.push_back(now);
            if times.len() > WATCHED {
                times.pop_front();
            }
            conflicts.extend((count_without_gap(times) == CONFLICT).then_some(*key));
        }
        conflicts
    }

    /// Another program keeps undoing a repair, lately within `within`.
    pub(super) fn has_conflict(&self, now: Instant, within: Duration) -> bool {
        self.0.values().any(|times| {
            times.back().is_some_and(|last| now.duration_since(*last) < within)
                && count_without_gap(times) >= CONFLICT
        })
    }

    /// The objects that flanneld restored in the last ten minutes, with the number of repairs.
    #[must_use]
    pub fn lately(&self, now: Instant) -> Vec<(Key, u32)> {
        let count = |times: &VecDeque<Instant>| {
            times.iter().filter(|time| now.duration_since(**time) < WINDOW).count()
        };
        let counted = self
            .0
            .iter()
            .map(|(key, times)| (*key, u32::try_from(count(times)).unwrap_or(u32::MAX)));
        counted.filter(|(_, times)| *times > 0).collect()
    }
}

/// The last repairs of an object, between which there was no gap.
fn count_without_gap(times: &VecDeque<Instant>) -> usize {
    let gaps = times.iter().rev().zip(times.iter().rev().skip(1));
    let close = gaps.take_while(|(next, time)| next.duration_since(**time) < CONFLICT_GAP);
    times.len().min(1 + close.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_counted_for_ten_minutes() {
        let key = |number: u8| Key::Route(format!("10.244.{number}.0/24").parse().unwrap(), 0);
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        for minute in 0..5 {
            let conflicts = repairs.note([key(1)].iter(), start + Duration::from_secs(60 * minute));
            assert!(conflicts.is_empty());
        }
        let _ = repairs.note([key(2)].iter(), start);
        assert_eq!(repairs.lately(start + Duration::from_secs(240)), [(key(1), 5), (key(2), 1)]);
        assert_eq!(repairs.lately(start + Duration::from_secs(630)), [(key(1), 4)]);
        assert_eq!(repairs.lately(start + Duration::from_secs(3600)), []);
        // Memory use is bounded for any number of repairs.
        let many: Vec<Key> = (0..=255).map(key).collect();
        (0..100).for_each(|_| drop(repairs.note(many.iter(), start)));
        assert!(
            repairs.0.len() == WATCHED && repairs.0.values().all(|times| times.len() <= WATCHED)
        );
    }

    #[test]
    fn frequent_repairs_of_one_object_are_a_conflict_until_they_end() {
        let key = Key::Route("10.244.1.0/24".parse().unwrap(), 0);
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let begun: Vec<usize> =
            (0..8).map(|second| repairs.note([key].iter(), at(second)).len()).collect();
        assert_eq!(begun, [0, 0, 0, 0, 1, 0, 0, 0]);
        let within = Duration::from_secs(10);
        assert!(repairs.has_conflict(at(8), within) && !repairs.has_conflict(at(20), within));
        let _ = repairs.note([key].iter(), at(100));
        assert!(!repairs.has_conflict(at(100), within), "a minute passed without a repair");
    }
}
