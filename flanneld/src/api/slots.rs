//! Which connections one way in keeps, and which one makes room for the next.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The most connections of one way in.
pub(super) const CONNECTIONS: usize = 64;
/// How long a connection is kept at least before the next one displaces it: a client that sends its request at once is always heard.
pub(super) const MINIMUM: Duration = Duration::from_millis(10);
/// The most of these that keep their places for their answers as long as others wait.
const ANSWERS: usize = CONNECTIONS / 2;
/// How long an answer beyond those is left alone. A probe behind a full backlog (1024) of clients that do not read is taken within half a second;
/// kubelet waits for one.
pub(super) const ANSWERING: Duration = Duration::from_millis(20);

/// The connections of one way in, by number. The lower number is the older connection.
#[derive(Debug, Default)]
pub(super) struct Slots {
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
pub(super) enum Room {
    /// Nothing: there is a free place.
    Free,
    /// The place of this connection.
    Displace(u64),
    /// This much patience.
    Wait(Duration),
}

impl Slots {
    /// Takes a place.
    pub(super) fn open(&mut self, now: Instant) -> u64 {
        self.last += 1;
        self.open.insert(
            self.last,
            Open {
                since: now,
                asked: None,
            },
        );
        self.last
    }

    /// The connection has sent its request in whole.
    pub(super) fn asked(&mut self, number: u64, now: Instant) {
        if let Some(open) = self.open.get_mut(&number) {
            open.asked.get_or_insert(now);
        }
    }

    /// Gives the place back.
    pub(super) fn close(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Whether the connection still has its place.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    /// Where the next connection finds room: the oldest one without a whole request goes first. Where answers take most places, the connection
    /// whose time ended first goes.
    pub(super) fn room(&self, now: Instant) -> Room {
        if self.open.len() < CONNECTIONS {
            return Room::Free;
        }
        let due = |open: &Open| {
            open.asked
                .map_or(open.since + MINIMUM, |asked| asked + ANSWERING)
        };
        let is_crowded = self
            .open
            .values()
            .filter(|open| open.asked.is_some())
            .count()
            > ANSWERS;
        let all = self
            .open
            .iter()
            .filter(|(_, open)| is_crowded || open.asked.is_none())
            .map(|(number, open)| (*number, due(open)));
        match all.min_by_key(|(_, due)| *due) {
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
    fn an_answer_that_nobody_reads_makes_room_where_answers_take_most_places() {
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

    /// The time until a client that has `ahead` others before it and all places taken gets one. `asks` tells after which time each of them asks.
    fn time_until_in(ahead: usize, asks: impl Fn(usize) -> Option<Duration>) -> Duration {
        let begun = Instant::now();
        let mut now = begun;
        let mut slots = Slots::default();
        let mut due = BTreeMap::new();
        for client in 0..=ahead + CONNECTIONS {
            loop {
                due.retain(|number, at| {
                    let is_due = *at <= now;
                    if is_due {
                        slots.asked(*number, *at);
                    }
                    !is_due
                });
                match slots.room(now) {
                    Room::Free => break,
                    Room::Displace(number) => slots.close(number),
                    Room::Wait(time) => now += time.min(Duration::from_millis(1)),
                }
            }
            let number = slots.open(now);
            due.extend(asks(client).map(|after| (number, now + after)));
        }
        now - begun
    }

    /// The backlog of a port has 1024 connections, and kubelet waits for one second. Nobody in this flood reads an answer or goes.
    #[test]
    fn probe_behind_a_backlog_of_clients_that_do_not_read_is_taken_in_time() {
        const BACKLOG: usize = 1024;
        const TIMEOUT: Duration = Duration::from_millis(600);
        let millis = |count| Some(Duration::from_millis(count));
        let all_ask = time_until_in(BACKLOG, |_| millis(0));
        let late = time_until_in(BACKLOG, |_| millis(9));
        let half = time_until_in(BACKLOG, |client| millis(0).filter(|_| client % 2 == 0));
        let few_are_silent = time_until_in(BACKLOG, |client| millis(0).filter(|_| client % 64 > 0));
        let answers_first = time_until_in(BACKLOG, |client| {
            millis(0).filter(|_| client < CONNECTIONS - 1)
        });
        for time in [all_ask, late, half, few_are_silent, answers_first] {
            assert!(
                time < TIMEOUT,
                "{:?}",
                [all_ask, late, half, few_are_silent, answers_first]
            );
        }
    }

    #[test]
    fn answers_in_few_places_are_left_alone() {
        let begun = Instant::now();
        let mut slots = full(begun);
        for number in 1..=u64::try_from(CONNECTIONS / 2).unwrap() {
            slots.asked(number, begun);
        }
        let silent = u64::try_from(CONNECTIONS / 2).unwrap() + 1;
        assert_eq!(slots.room(begun + 100 * ANSWERING), Room::Displace(silent));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// However clients behave, no more places are taken than there are, and the next connection waits a moment at most.
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
