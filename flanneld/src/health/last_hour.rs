//! Growth of a counter within the last hour.

use std::collections::VecDeque;
use std::time::Duration;
use subnet_lease::manager::boot_time;

const HOUR: Duration = Duration::from_secs(3600);
/// Minimum interval between two recorded values.
const STEP: Duration = Duration::from_secs(60);

/// The values of a counter, one per minute, each with its time.
#[derive(Debug, Default)]
pub struct LastHour(VecDeque<(Duration, u64)>);

impl LastHour {
    /// Ignores the value if the last recorded one is less than a minute old.
    pub fn note(&mut self, value: u64) {
        self.note_at(boot_time(), value);
    }

    fn note_at(&mut self, now: Duration, value: u64) {
        if self.0.back().is_none_or(|(last, _)| now.saturating_sub(*last) >= STEP) {
            self.0.push_back((now, value));
        }
        // The last value before the hour is the one with which the hour began.
        while self.0.get(1).is_some_and(|(second, _)| now.saturating_sub(*second) >= HOUR) {
            self.0.pop_front();
        }
    }

    /// `value` is the current value. For a younger counter, the growth since the first recorded value.
    pub fn within(&self, value: u64) -> u64 {
        // With only one noted value, the growth is that since the counter began with 0.
        let begun = self.0.front().filter(|_| self.0.len() > 1).map_or(0, |(_, value)| *value);
        value.saturating_sub(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_older_than_an_hour_are_not_counted() {
        let mut hour = LastHour::default();
        assert_eq!(hour.within(3), 3);
        let at = |seconds| Duration::from_secs(seconds);
        for second in 0..7200 {
            // Five in the first minute, one every ten minutes after it.
            let value = 5 + second / 600;
            hour.note_at(at(1000 + second), value);
            assert!(hour.0.len() <= 62, "{}", hour.0.len());
        }
        assert_eq!(hour.within(5 + 7199 / 600), 6);
    }
}
