//! Which connections one way in keeps, and which one makes room for the next.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The most connections of one way in.
pub const CONNECTIONS: usize = 64;
/// How long a connection is kept at least before the next one displaces it: a client that sends its request at once is always heard.
pub const MINIMUM: Duration = Duration::from_millis(10);
/// How long an answer is left alone before a flood of slow readers may displace it.
pub const ANSWERING: Duration = Duration::from_secs(1);

/// The connections of one way in, by number. The lower number is the older connection.
#[derive(Debug, Default)]
pub struct Slots {
    open: BTreeMap<u64, Open>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    since: Instant,
    /// When the request was there in whole.
    asked: Option<Instant>,
}

/// What the next connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nothing: there is a free place.
    Free,
    /// The place of this connection.
    Displace(u64),
    /// This much patience.
    Wait(Duration),
}

impl Slots {
    /// Takes a place.
    pub fn open(&mut self, now: Instant) -> u64 {
        self.last += 1;
        self.open.insert(self.last, Open { since: now, asked: None });
        self.last
    }

    /// The connection has sent its request in whole.
    pub fn asked(&mut self, number: u64, now: Instant) {
        if let Some(open) = self.open.get_mut(&number) {
            open.asked.get_or_insert(now);
        }
    }

    /// Gives the place back.
    pub fn close(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Whether the connection still has its place.
    pub fn is_open(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    /// Where the next connection finds room: the oldest one without a whole request goes first, then the oldest answer that nobody reads.
    pub fn room(&self, now: Instant) -> Room {
        if self.open.len() < CONNECTIONS {
            return Room::Free;
        }
        let silent = self.open.iter().find(|(_, open)| open.asked.is_none()).map(|(number, open)| (*number, open.since + MINIMUM));
        let unread = || self.open.iter().filter_map(|(number, open)| Some((*number, open.asked? + ANSWERING))).min_by_key(|(_, due)| *due);
        match silent.or_else(unread) {
            None => Room::Free,
            Some((number, due)) if due <= now => Room::Displace(number),
            Some((_, due)) => Room::Wait(due - now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(now: Instant) -> Slots {
        let mut slots = Slots::default();
        for _ in 0..CONNECTIONS {
            assert_eq!(slots.room(now), Room::Free);
            slots.open(now);
        }
        slots
    }

    #[test]
    fn the_oldest_without_a_request_makes_room() {
        let begun = Instant::now();
        let mut slots = full(begun);
        let soon = begun + MINIMUM / 2;
        assert_eq!(slots.room(soon), Room::Wait(MINIMUM / 2));
        let later = begun + MINIMUM;
        assert_eq!(slots.room(later), Room::Displace(1));
        slots.asked(1, later);
        slots.asked(3, later);
        assert_eq!(slots.room(later), Room::Displace(2));
        slots.close(2);
        assert_eq!(slots.room(later), Room::Free);
    }

    #[test]
    fn an_answer_that_nobody_reads_makes_room_after_a_second() {
        let begun = Instant::now();
        let mut slots = full(begun);
        let last = u64::try_from(CONNECTIONS).unwrap();
        for number in 1..=last {
            // The oldest connection asked last.
            slots.asked(number, begun + Duration::from_millis(last - number));
        }
        assert_eq!(slots.room(begun), Room::Wait(ANSWERING));
        assert_eq!(slots.room(begun + ANSWERING), Room::Displace(last));
        // Asking again is no way to stay.
        slots.asked(last, begun + ANSWERING);
        assert_eq!(slots.room(begun + ANSWERING), Room::Displace(last));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// However clients behave, no more places are taken than there are, and the next connection waits a second at most.
        #[test]
        fn there_is_always_room_soon(steps in prop::collection::vec((0u8..3, 0u64..200, 0u64..50), 0..400)) {
            let mut now = Instant::now();
            let mut slots = Slots::default();
            for (kind, number, millis) in steps {
                now += Duration::from_millis(millis);
                match kind {
                    0 => {
                        match slots.room(now) {
                            Room::Free => {}
                            Room::Displace(number) => slots.close(number),
                            Room::Wait(time) => {
                                prop_assert!(time <= ANSWERING);
                                now += time;
                                let Room::Displace(number) = slots.room(now) else { panic!("{:?}", slots.room(now)) };
                                slots.close(number);
                            }
                        }
                        slots.open(now);
                    }
                    1 => slots.asked(number, now),
                    _ => slots.close(number),
                }
                prop_assert!(slots.open.len() <= CONNECTIONS);
            }
        }
    }
}
