//! The recent gain of a counter of the kernel, however often it is read.

use crate::facts::host::Checksums;
use std::collections::VecDeque;
use std::time::Duration;

/// How long samples are kept: longer than the pause between two questions to a peer that answers only ping, so that a fault
/// that lasts is seen at every read, and one burst is not reported for ever.
const SAMPLE_LIFETIME: Duration = Duration::from_secs(120);
/// The shortest time between two samples that are kept.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples of the counters of checksum errors.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The first sample is the base of the gain.
    looks: VecDeque<(Duration, Checksums)>,
}

impl Tally {
    /// Returns the gain of the last minutes; none at the first read. `at` is on any monotonic clock.
    pub(super) fn gained(&mut self, at: Duration, now: Checksums) -> Checksums {
        // The counters of another network namespace, or of a kernel that was reset.
        if self
            .looks
            .back()
            .is_some_and(|(_, last)| now.udp < last.udp || now.tcp < last.tcp)
        {
            self.looks.clear();
        }
        while self
            .looks
            .get(1)
            .is_some_and(|(second, _)| at.saturating_sub(*second) >= SAMPLE_LIFETIME)
        {
            self.looks.pop_front();
        }
        if self
            .looks
            .back()
            .is_none_or(|(last, _)| at.saturating_sub(*last) >= SAMPLE_INTERVAL)
        {
            self.looks.push_back((at, now));
        }
        let first = self.looks.front().map_or(now, |(_, first)| *first);
        Checksums {
            udp: now.udp.saturating_sub(first.udp),
            tcp: now.tcp.saturating_sub(first.tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_seen_by_every_reader_for_two_minutes() {
        let mut tally = Tally::default();
        let mut look = |milliseconds: u64, udp| {
            tally
                .gained(
                    Duration::from_millis(milliseconds),
                    Checksums { udp, tcp: 0 },
                )
                .udp
        };
        assert_eq!(look(0, 1000), 0, "what was before is nobody's");
        assert_eq!(look(10_000, 1000), 0);
        // Somebody looks again and again while it lasts, and afterwards.
        assert_eq!(
            [
                look(10_010, 1003),
                look(10_020, 1004),
                look(10_030, 1004),
                look(20_000, 1004)
            ],
            [3, 4, 4, 4]
        );
        assert_eq!(look(120_000, 1004), 4);
        assert_eq!(look(140_000, 1004), 0, "it is over");
        assert_eq!(look(150_000, 1005), 1);
        assert_eq!(
            [look(160_000, 3), look(170_000, 5)],
            [0, 2],
            "the counters began anew"
        );
    }

    #[test]
    fn tally_keeps_at_most_one_sample_a_second() {
        let mut tally = Tally::default();
        for number in 0..100_000 {
            tally.gained(
                Duration::from_millis(number * 10),
                Checksums {
                    udp: number,
                    tcp: 0,
                },
            );
        }
        assert!(tally.looks.len() <= 123, "{}", tally.looks.len());
        let gained = tally
            .gained(
                Duration::from_secs(1000),
                Checksums {
                    udp: 100_000,
                    tcp: 0,
                },
            )
            .udp;
        assert!((12_000..=12_200).contains(&gained), "{gained}");
    }
}
