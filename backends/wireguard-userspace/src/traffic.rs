//! Byte counts and times that the packet path records for the timers of a peer, without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// This long after a received packet, this node has sent a packet or a keepalive (KEEPALIVE_TIMEOUT).
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(10);
/// This long after a sent packet, the peer must have sent a packet or a keepalive. Else this node requests a
/// new session (KEEPALIVE_TIMEOUT + REKEY_TIMEOUT).
pub(crate) const ANSWER: Duration = Duration::from_secs(15);
/// After this time a peer's overdue timers are scheduled again.
const OVERDUE: Duration = Duration::from_secs(2);

/// Nanoseconds since the creation of the device, plus one; zero means no time.
#[derive(Default)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    pub(crate) fn clear(&self) {
        // The mark is usually clear. A store would take the cache line, which the threads share.
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }
}

/// Converts between a time and the number in a [`Mark`].
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    began: Instant,
}

impl Clock {
    pub(crate) fn new(began: Instant) -> Self {
        Self { began }
    }

    /// Reaches its maximum 584 years after the creation of the device.
    fn tick(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began).as_nanos();
        u64::try_from(since).map_or(u64::MAX, |since| since.saturating_add(1))
    }

    pub(crate) fn read(&self, mark: &Mark) -> Option<Instant> {
        match mark.0.load(Relaxed) {
            0 => None,
            tick => Some(self.began + Duration::from_nanos(tick - 1)),
        }
    }

    pub(crate) fn set(&self, mark: &Mark, at: Instant) {
        mark.0.store(self.tick(at), Relaxed);
    }

    /// Stores a time unless the mark holds one already. True if it stored the time.
    pub(crate) fn set_first(&self, mark: &Mark, at: Instant) -> bool {
        mark.0.load(Relaxed) == 0
            && mark.0.compare_exchange(0, self.tick(at), Relaxed, Relaxed).is_ok()
    }
}

/// The traffic between this node and a peer, as byte counts and times.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Bytes of all sent datagrams, and of all received ones.
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// The first packet sent after the last received message.
    pub(crate) unanswered: Mark,
    /// The first packet received after the last sent message.
    pub(crate) unacknowledged: Mark,
    /// The last datagram in either direction.
    pub(crate) passed: Mark,
    /// When the handshake thread next runs the peer's timers.
    due: Mark,
    /// Whether a new session is requested, even if one exists.
    pub(crate) wants_session: AtomicBool,
}

impl Traffic {
    /// Counts a received message, and a prepared one if it was `sent`.
    pub(crate) fn count(&self, made: &[u8], sent: bool, came: &[u8]) {
        let made = if sent { made.len() } else { 0 };
        self.sent.fetch_add(made as u64, Relaxed);
        self.received.fetch_add(came.len() as u64, Relaxed);
    }

    /// `carries` is false for a keepalive. Returns the time at which the peer's timers have to run.
    #[inline]
    pub(crate) fn note_sent(&self, clock: &Clock, now: Instant, carries: bool) -> Option<Instant> {
        self.unacknowledged.clear();
        clock.set(&self.passed, now);
        (carries && clock.set_first(&self.unanswered, now)).then(|| now + ANSWER)
    }

    /// Only for authentic messages. `carries` is false for a keepalive. Returns the time at which the peer's
    /// timers have to run.
    #[inline]
    pub(crate) fn note_received(
        &self,
        clock: &Clock,
        now: Instant,
        carries: bool,
    ) -> Option<Instant> {
        self.unanswered.clear();
        clock.set(&self.passed, now);
        (carries && clock.set_first(&self.unacknowledged, now)).then(|| now + KEEPALIVE)
    }

    /// Schedules the peer's timers for `at`. `None` if they are scheduled for an earlier time. But one that
    /// passed more than [`OVERDUE`] ago no longer counts, because the handshake thread may have skipped the
    /// timers. It skips those of a peer that is not published yet, or whose slot still belongs to another.
    #[inline]
    pub(crate) fn enter(&self, clock: &Clock, at: Instant, now: Instant) -> Option<Instant> {
        let due = clock.read(&self.due);
        if due.is_some_and(|due| due <= at && due + OVERDUE >= now) {
            return None;
        }
        clock.set(&self.due, at);
        clock.read(&self.due)
    }

    /// Clears the scheduled time `at`. False if another thread has changed it.
    pub(crate) fn take(&self, clock: &Clock, at: Instant) -> bool {
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
