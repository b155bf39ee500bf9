//! Search for the MTU of a path, to the byte, with probes of different sizes.

use std::time::Duration;
use types::Family;

/// The minimum MTU of a family in bytes, which every path must carry (RFC 791, RFC 8200).
pub const fn least(family: Family) -> u16 {
    match family {
        Family::V4 => 576,
        Family::V6 => 1280,
    }
}

/// Number of lost probes of one size after which the size is too large.
const MAX_TRIES: u8 = 2;
/// Minimum and maximum time to wait for a reply.
const ANSWER_TIMEOUT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));

/// A search for the MTU of a path. The path carries packets of a size if one probe of it got a reply. A size is too
/// large if two probes of it got no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// The largest packet size, in bytes, that the path certainly or probably carries.
    carried: u16,
    /// The smallest known packet size, in bytes, that is too large for the path.
    too_large: u16,
    tries: u8,
}

impl Search {
    /// Starts a search between a packet size that the path probably carries and a packet size that is too large.
    pub fn new(carried: u16, too_large: u16) -> Self {
        Self { carried: carried.min(too_large.saturating_sub(1)), too_large, tries: 0 }
    }

    /// The packet size of the next probe; `None` when the search has found the MTU.
    pub fn next(&self) -> Option<u16> {
        let apart = self.too_large.saturating_sub(self.carried);
        (apart > 1).then(|| self.carried + apart / 2)
    }

    /// The MTU in bytes; `None` while the search is not complete.
    pub fn found(&self) -> Option<u16> {
        self.next().is_none().then_some(self.carried)
    }

    pub fn answered(&mut self, size: u16) {
        if size >= self.too_large {
            // The path carries this size; earlier probes of it were lost by chance.
            self.too_large = size.saturating_add(1);
        }
        self.carried = self.carried.max(size);
        self.tries = 0;
    }

    pub fn lost(&mut self, size: u16) {
        if Some(size) != self.next() {
            return;
        }
        self.tries += 1;
        if self.tries >= MAX_TRIES {
            self.too_large = size;
            self.tries = 0;
        }
    }

    /// The time to wait for a reply, based on the known round-trip time.
    pub fn wait(rtt: Option<Duration>) -> Duration {
        rtt.map_or(ANSWER_TIMEOUT.1, |rtt| (rtt * 20).clamp(ANSWER_TIMEOUT.0, ANSWER_TIMEOUT.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wait_follows_the_round_trip() {
        assert_eq!(Search::wait(None), Duration::from_secs(1));
        assert_eq!(Search::wait(Some(Duration::from_micros(400))), Duration::from_millis(250));
        assert_eq!(Search::wait(Some(Duration::from_millis(20))), Duration::from_millis(400));
        assert_eq!(Search::wait(Some(Duration::from_secs(3))), Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn search_finds_the_mtu_to_the_byte(mtu in 576u16..1450, unlucky in 0usize..30) {
            let mut search = Search::new(least(Family::V4), 1450);
            let mut asked = 0;
            while let Some(size) = search.next() {
                prop_assert!((577..1450).contains(&size));
                asked += 1;
                prop_assert!(asked <= 22);
                // One probe is lost by chance.
                if size <= mtu && asked != unlucky {
                    search.answered(size);
                } else {
                    search.lost(size);
                }
            }
            prop_assert_eq!(search.found(), Some(mtu));
        }

        #[test]
        fn search_ends_for_any_answers(carried: u16, too_large: u16, answers in proptest::collection::vec((any::<u16>(), any::<bool>()), 0..50)) {
            let mut search = Search::new(carried, too_large);
            for (size, answered) in answers {
                if answered { search.answered(size) } else { search.lost(size) }
            }
            let mut steps = 0;
            while let Some(size) = search.next() {
                search.lost(size);
                steps += 1;
                prop_assert!(steps <= 40);
            }
        }
    }
}
