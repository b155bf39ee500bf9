//! Decides which connections a listener keeps, and which it displaces for a new one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum of one listener.
pub(super) const CONNECTIONS: usize = 64;
/// Minimum time before a listener displaces a connection. A client that sends its request at once always gets a response.
pub(super) const MINIMUM: Duration = Duration::from_millis(10);
/// Connections that keep their slots until they have their responses, while others wait.
const ANSWERS: usize = CONNECTIONS / 2;
/// Minimum time from a complete request until a listener displaces its connection, if more than `ANSWERS` connections
/// have complete requests. If clients that do not read fill the backlog (1024), the listener still accepts a probe
/// within half a second. kubelet waits one second for the response.
pub(super) const ANSWERING: Duration = Duration::from_millis(20);

/// By number. A connection with a lower number is older.
#[derive(Debug, Default)]
pub(super) struct Slots {
    open: BTreeMap<u64, Open>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    since: Instant,
    /// When the request arrived completely.
    asked: Option<Instant>,
}

/// The step before a listener accepts the next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// A slot is free.
    Free,
    Displace(u64),
    /// Wait for this long, and then decide again.
    Wait(Duration),
}

impl Slots {
    /// The result is the connection's number.
    pub(super) fn open(&mut self, now: Instant) -> u64 {
        self.last += 1;
        self.open.insert(self.last, Open { since: now, asked: None });
        self.last
    }

    /// Records that the whole request has arrived.
    pub(super) fn asked(&mut self, number: u64, now: Instant) {
        if let Some(open) = self.open.get_mut(&number) {
            open.asked.get_or_insert(now);
        }
    }

    pub(super) fn close(&mut self, number: u64) {
        self.open.remove(&number);
    }

    pub(super) fn is_open(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    /// The oldest connection without a complete request is displaced. If connections with complete requests hold most
    /// slots, the one whose minimum time ended first is.
    pub(super) fn room(&self, now: Instant) -> Room {
        if self.open.len() < CONNECTIONS {
            return Room::Free;
        }
        let due = |open: &Open| open.asked.map_or(open.since + MINIMUM, |asked| asked + ANSWERING);
        let answers_hold_most =
            self.open.values().filter(|open| open.asked.is_some()).count() > ANSWERS;
        let all = self
            .open
            .iter()
            .filter(|(_, open)| answers_hold_most || open.asked.is_none())
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
    fn oldest_connection_without_a_request_is_displaced() {
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
    fn unread_answer_is_displaced_when_answers_hold_most_slots() {
        let begun = Instant::now();
        let mut slots = full(begun);
        let last = u64::try_from(CONNECTIONS).unwrap();
        for number in 1..=last {
            // The oldest connection sent its request last.
            slots.asked(number, begun + Duration::from_millis(last - number));
        }
        assert_eq!(slots.room(begun), Room::Wait(ANSWERING));
        assert_eq!(slots.room(begun + ANSWERING), Room::Displace(last));
        // A second request does not extend the time.
        slots.asked(last, begun + ANSWERING);
        assert_eq!(slots.room(begun + ANSWERING), Room::Displace(last));
    }

    /// The time until a client gets a slot if all slots are taken and `ahead` other clients wait before it.
    /// `request_after` returns the delay after which a client sends its request.
    fn time_until_in(ahead: usize, request_after: impl Fn(usize) -> Option<Duration>) -> Duration {
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
            due.extend(request_after(client).map(|after| (number, now + after)));
        }
        now - begun
    }

    /// A listener accepts a probe behind a full backlog of 1024 connections before kubelet's timeout of one second.
    /// No client in the backlog reads a response or closes its connection.
    #[test]
    fn probe_behind_clients_that_do_not_read_is_accepted_in_time() {
        const BACKLOG: usize = 1024;
        const TIMEOUT: Duration = Duration::from_millis(600);
        let millis = |count| Some(Duration::from_millis(count));
        let all_ask = time_until_in(BACKLOG, |_| millis(0));
        let late = time_until_in(BACKLOG, |_| millis(9));
        let half = time_until_in(BACKLOG, |client| millis(0).filter(|_| client % 2 == 0));
        let few_are_silent = time_until_in(BACKLOG, |client| millis(0).filter(|_| client % 64 > 0));
        let answers_first =
            time_until_in(BACKLOG, |client| millis(0).filter(|_| client < CONNECTIONS - 1));
        for time in [all_ask, late, half, few_are_silent, answers_first] {
            assert!(time < TIMEOUT, "{:?}", [all_ask, late, half, few_are_silent, answers_first]);
        }
    }

    #[test]
    fn answers_in_few_slots_are_not_displaced() {
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

        /// Connections take no more slots than exist, and the next connection waits at most [`ANSWERING`], regardless of the clients' behaviour.
        #[test]
        fn slot_becomes_free_soon_after_any_history(steps in prop::collection::vec((0u8..3, 0u64..200, 0u64..50), 0..400)) {
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
