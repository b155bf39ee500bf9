//! The objects that flanneld restored recently because another program changed them, with the number of repairs.

use crate::object::Key;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// How long a repair is remembered.
const WINDOW: Duration = Duration::from_secs(600);
/// Remembered objects, and remembered repairs of each. If more than 64 objects are in conflict, the
/// remembered ones still reveal it.
const WATCHED: usize = 64;

/// The repairs of the last ten minutes.
#[derive(Debug, Default)]
pub(super) struct Repairs(BTreeMap<Key, VecDeque<Instant>>);

impl Repairs {
    pub(super) fn note<'a>(&mut self, keys: impl Iterator<Item = &'a Key>, now: Instant) {
        self.0
            .retain(|_, times| times.back().is_some_and(|last| now.duration_since(*last) < WINDOW));
        for key in keys {
            if self.0.len() >= WATCHED && !self.0.contains_key(key) {
                continue;
            }
            let times = self.0.entry(*key).or_default();
            times.push_back(now);
            if times.len() > WATCHED {
                times.pop_front();
            }
        }
    }

    /// The objects that flanneld restored in the last ten minutes, with the number of repairs.
    pub(super) fn lately(&self, now: Instant) -> Vec<(Key, u32)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_counted_for_ten_minutes() {
        let key = |number: u8| Key::Route(format!("10.244.{number}.0/24").parse().unwrap(), 0);
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        for minute in 0..5 {
            repairs.note([key(1)].iter(), start + Duration::from_secs(60 * minute));
        }
        repairs.note([key(2)].iter(), start);
        assert_eq!(repairs.lately(start + Duration::from_secs(240)), [(key(1), 5), (key(2), 1)]);
        assert_eq!(repairs.lately(start + Duration::from_secs(630)), [(key(1), 4)]);
        assert_eq!(repairs.lately(start + Duration::from_secs(3600)), []);
        // Memory use is bounded for any number of repairs.
        let many: Vec<Key> = (0..=255).map(key).collect();
        (0..100).for_each(|_| repairs.note(many.iter(), start));
        assert!(
            repairs.0.len() == WATCHED && repairs.0.values().all(|times| times.len() <= WATCHED)
        );
    }
}
