//! What a counter of the kernel gained lately, however often somebody looks.

use crate::facts::host::Checksums;
use std::collections::VecDeque;
use std::time::Duration;

/// How long what was counted is remembered: longer than the pause between two questions to a peer that answers ping alone, so that a fault
/// that lasts is seen at every look, and one burst is not told for ever.
const MEMORY: Duration = Duration::from_secs(120);
/// Looks that follow each other faster are not remembered one by one.
const STEP: Duration = Duration::from_secs(1);

/// Checksum errors, as they were counted at earlier looks.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The first one is what is counted from.
    looks: VecDeque<(Duration, Checksums)>,
}

impl Tally {
    /// What was counted in the last minutes; nothing at the first look. `at` is on any clock that does not go back.
    pub(super) fn gained(&mut self, at: Duration, now: Checksums) -> Checksums {
        // The counters of another network namespace, or of a kernel that began anew.
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
            .is_some_and(|(second, _)| at.saturating_sub(*second) >= MEMORY)
        {
            self.looks.pop_front();
        }
        if self
            .looks
            .back()
            .is_none_or(|(last, _)| at.saturating_sub(*last) >= STEP)
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
    fn a_burst_is_seen_for_two_minutes_whoever_looks() {
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
    fn it_remembers_a_look_a_second_at_most() {
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
