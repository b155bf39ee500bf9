//! Computes the increase of the checksum error counters in the last two minutes, however often the doctor reads the counters.

use crate::facts::host::Checksums;
use std::collections::VecDeque;
use std::time::Duration;

/// For longer than the interval between probes of a peer that replies only to ping, so that every read shows a lasting fault. After two minutes, a
/// single burst of errors is no longer reported.
const SAMPLE_LIFETIME: Duration = Duration::from_secs(120);
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Samples with their times, the oldest first. The increase counts since the first one.
    looks: VecDeque<(Duration, Checksums)>,
}

impl Tally {
    /// The increase over the last two minutes; zero at the first call. `at` is the time of the sample `now` on any monotonic clock.
    pub(super) fn gained(&mut self, at: Duration, now: Checksums) -> Checksums {
        // The counters have decreased, so they are those of another network namespace or of a rebooted kernel.
        if self.looks.back().is_some_and(|(_, last)| now.udp < last.udp || now.tcp < last.tcp) {
            self.looks.clear();
        }
        while self
            .looks
            .get(1)
            .is_some_and(|(second, _)| at.saturating_sub(*second) >= SAMPLE_LIFETIME)
        {
            self.looks.pop_front();
        }
        if self.looks.back().is_none_or(|(last, _)| at.saturating_sub(*last) >= SAMPLE_INTERVAL) {
            self.looks.push_back((at, now));
        }
        let first = self.looks.front().map_or(now, |(_, first)| *first);
        Checksums { udp: now.udp.saturating_sub(first.udp), tcp: now.tcp.saturating_sub(first.tcp) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_seen_by_every_reader_for_two_minutes() {
        let mut tally = Tally::default();
        let mut look = |milliseconds: u64, udp| {
            tally.gained(Duration::from_millis(milliseconds), Checksums { udp, tcp: 0 }).udp
        };
        assert_eq!(look(0, 1000), 0, "the first read reports no earlier errors");
        assert_eq!(look(10_000, 1000), 0);
        // Several reads during a burst and after it.
        assert_eq!(
            [look(10_010, 1003), look(10_020, 1004), look(10_030, 1004), look(20_000, 1004)],
            [3, 4, 4, 4]
        );
        assert_eq!(look(120_000, 1004), 4);
        assert_eq!(look(140_000, 1004), 0, "the burst is over");
        assert_eq!(look(150_000, 1005), 1);
        assert_eq!([look(160_000, 3), look(170_000, 5)], [0, 2], "the counters restarted at zero");
    }

    #[test]
    fn tally_keeps_at_most_one_sample_a_second() {
        let mut tally = Tally::default();
        for number in 0..100_000 {
            tally.gained(Duration::from_millis(number * 10), Checksums { udp: number, tcp: 0 });
        }
        assert!(tally.looks.len() <= 123, "{}", tally.looks.len());
        let gained =
            tally.gained(Duration::from_secs(1000), Checksums { udp: 100_000, tcp: 0 }).udp;
        assert!((12_000..=12_200).contains(&gained), "{gained}");
    }
}
