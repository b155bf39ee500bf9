//! Byte counts and times that the packet path records for the timers of a peer, without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time after a received packet within which this node sends a packet or a keepalive (KEEPALIVE_TIMEOUT).
pub(super) const KEEPALIVE: Duration = Duration::from_secs(10);
/// Time after a sent packet within which the peer has to send a packet or a keepalive. If the peer sends nothing within
/// [`ANSWER`], this node requests a new session (KEEPALIVE_TIMEOUT + REKEY_TIMEOUT).
pub(super) const ANSWER: Duration = Duration::from_secs(15);
/// Time after which the device schedules a peer's overdue timers again.
const OVERDUE: Duration = Duration::from_secs(2);

/// A time, stored as one plus the nanoseconds since the creation of the device; zero means that no time is stored.
#[derive(Default)]
pub(super) struct Mark(AtomicU64);

impl Mark {
    pub(super) fn clear(&self) {
        // The mark is usually clear. A store would take the cache line, which the threads share.
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }
}

/// Converts between a time and the number in a [`Mark`], relative to the creation of the device.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    began: Instant,
}

impl Clock {
    pub(super) fn new(began: Instant) -> Self {
        Self { began }
    }

    /// Returns the number that a [`Mark`] stores for a time. The number reaches its maximum 584 years after the creation of the device.
    fn tick(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began).as_nanos();
        u64::try_from(since).map_or(u64::MAX, |since| since.saturating_add(1))
    }

    pub(super) fn read(&self, mark: &Mark) -> Option<Instant> {
        match mark.0.load(Relaxed) {
            0 => None,
            tick => Some(self.began + Duration::from_nanos(tick - 1)),
        }
    }

    pub(super) fn set(&self, mark: &Mark, at: Instant) {
        mark.0.store(self.tick(at), Relaxed);
    }

    /// Stores a time unless the mark already holds a time. Returns whether this call stored the time.
    pub(super) fn set_first(&self, mark: &Mark, at: Instant) -> bool {
        mark.0.load(Relaxed) == 0
            && mark.0.compare_exchange(0, self.tick(at), Relaxed, Relaxed).is_ok()
    }
}

/// The traffic between this node and a peer, as byte counts and times.
#[derive(Default)]
pub(super) struct Traffic {
    /// Total bytes of the sent datagrams, and total bytes of the received datagrams.
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    /// Time of the first packet that this node sent after the last received message.
    pub(super) unanswered: Mark,
    /// Time of the first packet that this node received after the last sent message.
    pub(super) unacknowledged: Mark,
    /// Time of the last datagram that this node sent to the peer or received from the peer.
    pub(super) passed: Mark,
    /// Time at which the handshake thread next runs the peer's timers.
    due: Mark,
    /// Whether the timers of the peer request a new session, even if a session exists.
    pub(super) wants_session: AtomicBool,
}

impl Traffic {
    /// Counts the bytes of a received message, and the bytes of a prepared message if `sent` is true.
    pub(super) fn count(&self, made: &[u8], sent: bool, came: &[u8]) {
        let made = if sent { made.len() } else { 0 };
        self.sent.fetch_add(made as u64, Relaxed);
        self.received.fetch_add(came.len() as u64, Relaxed);
    }

    /// Records a sent message. `carries` is true if the message contains an inner packet, and false for a keepalive.
    /// Returns the time at which the handshake thread has to run the peer's timers, if any.
    #[inline]
    pub(super) fn note_sent(&self, clock: &Clock, now: Instant, carries: bool) -> Option<Instant> {
        self.unacknowledged.clear();
        clock.set(&self.passed, now);
        (carries && clock.set_first(&self.unanswered, now)).then(|| now + ANSWER)
    }

    /// Records a received authentic message. `carries` is true if the message contains an inner packet, and false for
    /// a keepalive. Returns the time at which the handshake thread has to run the peer's timers, if any.
    #[inline]
    pub(super) fn note_received(
        &self,
        clock: &Clock,
        now: Instant,
        carries: bool,
    ) -> Option<Instant> {
        self.unanswered.clear();
        clock.set(&self.passed, now);
        (carries && clock.set_first(&self.unacknowledged, now)).then(|| now + KEEPALIVE)
    }

    /// Schedules the peer's timers for the time `at`, unless the timers are scheduled for an earlier time. Returns
    /// the new time, or `None` if the earlier time still applies. An earlier time that passed more than [`OVERDUE`]
    /// ago no longer applies, because the handshake thread may have skipped the timers. The handshake thread skips the
    /// timers of a peer that is not published yet, or whose slot still belongs to another peer.
    #[inline]
    pub(super) fn enter(&self, clock: &Clock, at: Instant, now: Instant) -> Option<Instant> {
        let due = clock.read(&self.due);
        if due.is_some_and(|due| due <= at && due + OVERDUE >= now) {
            return None;
        }
        clock.set(&self.due, at);
        clock.read(&self.due)
    }

    /// Clears the time `at` for which the peer's timers are scheduled. Returns false if another thread has changed this time.
    pub(super) fn take(&self, clock: &Clock, at: Instant) -> bool {
        let due = clock.read(&self.due) == Some(at);
        if due {
            self.due.clear();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_packet_without_answer_counts() {
        let now = Instant::now();
        let (clock, traffic) = (Clock::new(now), Traffic::default());
        let later = now + Duration::from_secs(3);
        assert_eq!(traffic.note_sent(&clock, now, false), None);
        assert_eq!(traffic.note_sent(&clock, now, true), Some(now + ANSWER));
        assert_eq!(traffic.note_sent(&clock, later, true), None);
        assert_eq!(clock.read(&traffic.unanswered), Some(now));
        assert_eq!(traffic.note_received(&clock, later, false), None);
        assert_eq!(clock.read(&traffic.unanswered), None);
        assert_eq!(traffic.note_received(&clock, later, true), Some(later + KEEPALIVE));
        assert_eq!(traffic.note_received(&clock, later, true), None);
        traffic.note_sent(&clock, later, false);
        assert_eq!(clock.read(&traffic.unacknowledged), None);
    }

    #[test]
    fn earliest_visit_counts_and_a_lost_one_is_entered_again() {
        let now = Instant::now();
        let (clock, traffic) = (Clock::new(now), Traffic::default());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(traffic.enter(&clock, at(10), now), Some(at(10)));
        assert_eq!(traffic.enter(&clock, at(15), now), None);
        assert_eq!(traffic.enter(&clock, at(5), now), Some(at(5)));
        assert!(!traffic.take(&clock, at(10)));
        assert!(traffic.take(&clock, at(5)));
        assert_eq!(traffic.enter(&clock, at(10), now), Some(at(10)));
        assert_eq!(traffic.enter(&clock, at(20), at(13)), Some(at(20)));
    }
}
