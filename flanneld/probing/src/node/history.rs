//! Results of the last probes of a peer: the number of losses, and the round trips of the replies.

use super::message::ANSWER_TIMEOUT;
use super::moment::Moment;
use crate::verdict::is_slow;
use std::time::Duration;

/// Number of last probes for which reports and views show the losses.
const SHOWN: u32 = 16;
/// Number of last probes in the check of recent loss: five minutes of probes to a peer that the node probes often.
const LATELY: u32 = 37;
/// Number of losses among the last [`LATELY`] probes that make a peer lossy. At a loss rate of 1 %, five or more of
/// 37 probes get lost by chance in one of 30 000 samples.
const LOST_LATELY: u32 = 5;
/// Number of losses among the last [`LATELY`] probes below which a lossy peer has recovered.
const RECOVERED: u32 = 3;
/// Number of consecutive replies after which a lossy peer has recovered.
const ANSWERED: u32 = 12;
/// Minimum number of probes in the check of long-run loss: one hour of probes to a peer that the node probes often.
const LONG_RUN: u16 = 450;
/// Number of counted probes at which the history halves both long-run counters.
const LONG_RUN_MAX: u16 = 2 * LONG_RUN;
/// A peer is lossy in the long run if, on average, at least one of this many probes gets lost.
const LOST_IN_LONG_RUN: u16 = 50;
/// Minimum number of measured round trips before a peer can get the state `slow`.
const MIN_ROUND_TRIPS: u8 = 4;
/// A power of two.
const ROUND_TRIPS: u8 = 8;
/// Reciprocal of the weight of a new round trip in the moving average of the usual round trip.
const USUAL_WEIGHT: i64 = 256;

/// Results of the last probes of one peer over the overlay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    /// One bit per probe; the lowest bit represents the last probe. A set bit represents a probe without a reply.
    lost: u64,
    asked: u8,
    last_loss: Option<Moment>,
    /// Number of losses whose cause is still unknown: the path, or a daemon that does not respond.
    pending: u8,
    /// Whether many of the last probes got lost. The long-run counters omit bursts, because they would retain a burst
    /// for an hour.
    burst: bool,
    long_asked: u16,
    long_lost: u16,
    rtts: [u32; ROUND_TRIPS as usize],
    known: u8,
    /// In microseconds; 0 while unknown.
    usual_us: u32,
}

impl History {
    /// A history of only the usual round-trip time, which remains valid when packets start or stop arriving.
    pub(super) fn after_a_break(&self) -> Self {
        Self { usual_us: self.usual_us, ..Self::default() }
    }

    pub(super) fn answered(&mut self) {
        self.push(false);
    }

    /// The history records the loss only after its cause is known.
    pub(super) fn unanswered(&mut self, now: Duration) {
        self.pending = self.pending.saturating_add(1);
        self.last_loss = Some(now.into());
    }

    /// Counts the pending losses as losses of the path, and returns their number.
    pub(super) fn count_losses(&mut self) -> u8 {
        let pending = std::mem::take(&mut self.pending);
        for _ in 0..pending {
            self.push(true);
        }
        pending
    }

    /// Drops the pending losses, which the path did not cause.
    pub(super) fn forgive_losses(&mut self) {
        self.pending = 0;
    }

    fn push(&mut self, lost: bool) {
        self.lost = self.lost << 1 | u64::from(lost);
        self.asked = (self.asked + 1).min(LATELY as u8);
        if self.burst {
            return;
        }
        if self.long_asked >= LONG_RUN_MAX {
            self.long_asked /= 2;
            self.long_lost /= 2;
        }
        self.long_asked += 1;
        self.long_lost += u16::from(lost);
    }

    /// Reverts the recorded loss of a probe whose reply arrived late.
    pub(super) fn came_late(&mut self) {
        if self.pending > 0 {
            self.pending -= 1;
        } else if self.lost != 0 {
            self.lost &= self.lost.wrapping_sub(1);
            self.long_lost = self.long_lost.saturating_sub(1);
        }
    }

    /// Drops losses that occurred before the peer began to listen, because the path did not cause them.
    pub(super) fn began(&mut self, began: Duration) {
        if self.last_loss.is_some_and(|loss| loss <= Moment::from(began + ANSWER_TIMEOUT)) {
            let dropped = u16::try_from(self.lost.count_ones()).unwrap_or(u16::MAX);
            self.long_lost = self.long_lost.saturating_sub(dropped);
            self.lost = 0;
            self.pending = 0;
        }
    }

    /// Ignores the round trip of a late reply, because the history has recorded the probe as lost. A stalled peer
    /// replies to many probes at once, so its round trips do not describe the path.
    pub(super) fn round_trip(&mut self, rtt: Duration) {
        if rtt > ANSWER_TIMEOUT {
            return;
        }
        let us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
        if let Some(place) = self.rtts.get_mut(usize::from(self.known % ROUND_TRIPS)) {
            *place = us;
        }
        // From 8 to 15, all places are taken.
        self.known = if self.known == 2 * ROUND_TRIPS - 1 { ROUND_TRIPS } else { self.known + 1 };
        if self.usual_us == 0 {
            if self.known >= ROUND_TRIPS {
                self.adopt();
            }
        } else if !self.is_slow() {
            let usual = i64::from(self.usual_us);
            let moved = usual + (i64::from(us) - usual) / USUAL_WEIGHT;
            self.usual_us = u32::try_from(moved).unwrap_or(u32::MAX).max(1);
        }
    }

    /// Sets the usual round trip to the median of the last round trips.
    pub(super) fn adopt(&mut self) {
        self.usual_us = self.rtt_us().unwrap_or(0);
    }

    fn lost_of(&self, last: u32) -> u32 {
        (self.lost & ((1 << last) - 1)).count_ones()
    }

    /// Lost probes among the last [`SHOWN`].
    pub(super) fn lost(&self) -> u32 {
        self.lost_of(SHOWN)
    }

    /// Probes in the history, at most [`SHOWN`].
    pub(super) fn asked(&self) -> u8 {
        self.asked.min(SHOWN as u8)
    }

    /// The losses and all probes: of the last probes after a burst of losses, otherwise of the long run.
    pub(super) fn losses(&self) -> (u16, u16) {
        let lately = u16::try_from(self.lost_of(LATELY)).unwrap_or(u16::MAX);
        if self.burst { (lately, self.asked.into()) } else { (self.long_lost, self.long_asked) }
    }

    pub(super) fn last_loss(&self) -> Option<Duration> {
        self.last_loss.map(Duration::from)
    }

    /// True if more probes get lost than chance explains. `was` is the result of the previous check.
    pub(super) fn is_lossy(&mut self, was: bool) -> bool {
        let lately = self.lost_of(LATELY);
        if self.burst {
            self.burst = lately >= RECOVERED && self.lost_of(ANSWERED) > 0;
            if !self.burst {
                self.lost = 0;
            }
        } else if lately >= LOST_LATELY {
            self.burst = true;
            let counted = u16::try_from(lately).unwrap_or(u16::MAX);
            self.long_lost = self.long_lost.saturating_sub(counted);
        }
        let share = if was { 2 * LOST_IN_LONG_RUN } else { LOST_IN_LONG_RUN };
        let long =
            self.long_asked >= LONG_RUN && self.long_lost.saturating_mul(share) >= self.long_asked;
        self.burst || long
    }

    /// True if the replies take much longer than usual. On a busy machine, any single reply and the median of a few
    /// may be late. The fastest reply counts: a slow path never yields a fast one.
    pub(super) fn is_slow(&self) -> bool {
        let known = self.rtts.get(..usize::from(self.known.min(ROUND_TRIPS)));
        let fastest = known.and_then(|known| known.iter().min());
        self.known >= MIN_ROUND_TRIPS
            && self.usual_us > 0
            && fastest.is_some_and(|fastest| is_slow(*fastest, self.usual_us))
    }

    /// The median of the last round trips, in microseconds.
    pub(super) fn rtt_us(&self) -> Option<u32> {
        let mut rtts = self.rtts;
        let known = rtts.get_mut(..usize::from(self.known.min(ROUND_TRIPS)))?;
        known.sort_unstable();
        known.get(known.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn losses_of_the_last_sixteen_are_shown() {
        let mut history = History::default();
        for number in 0..20 {
            if number % 5 == 0 {
                history.unanswered(NOW);
                history.count_losses();
            } else {
                history.answered();
            }
        }
        assert_eq!((history.lost(), history.asked()), (3, 16));
        history.came_late();
        assert_eq!(history.lost(), 2);
        history.began(NOW - Duration::from_secs(50));
        assert_eq!(history.lost(), 2);
        history.began(NOW + Duration::from_secs(1));
        assert_eq!(history.lost(), 0);
        history.came_late();
        assert_eq!(history.lost(), 0);
        history.unanswered(NOW);
        history.forgive_losses();
        history.unanswered(NOW);
        history.came_late();
        history.count_losses();
        assert_eq!(history.lost(), 0);
    }

    fn ask(history: &mut History, questions: u32, lost: impl Fn(u32) -> bool) {
        for number in 0..questions {
            if lost(number) {
                history.unanswered(NOW);
                history.count_losses();
            } else {
                history.answered();
            }
        }
    }

    #[test]
    fn five_of_thirty_seven_are_more_than_chance() {
        let mut history = History::default();
        ask(&mut history, 37, |number| number % 9 == 8);
        assert!(!history.is_lossy(false), "four of 37");
        ask(&mut history, 1, |_| true);
        assert!(history.is_lossy(false));
        ask(&mut history, 11, |_| false);
        assert!(history.is_lossy(true), "the peer stays lossy for a while");
        ask(&mut history, 1, |_| false);
        assert!(!history.is_lossy(true) && !history.is_lossy(false), "twelve answers");
        ask(&mut history, 4, |_| true);
        assert!(!history.is_lossy(false), "earlier losses no longer apply");
    }

    #[test]
    fn two_in_a_hundred_are_more_than_chance_in_the_long_run() {
        for (every, lossy) in [(49, true), (80, false), (1000, false)] {
            let mut history = History::default();
            ask(&mut history, 400, |number| number % every == every - 1);
            assert!(!history.is_lossy(false), "not after 400");
            ask(&mut history, 2000, |number| number % every == every - 1);
            assert_eq!(history.is_lossy(false), lossy, "one in {every}");
        }
    }

    #[test]
    fn burst_of_losses_is_over_when_it_ends() {
        let mut history = History::default();
        let mut lossy = false;
        for question in 0..2000 {
            ask(&mut history, 1, |_| (1000..1100).contains(&question) && question % 2 == 0);
            lossy = history.is_lossy(lossy);
            let is_near = (1000..1120).contains(&question);
            assert!(!lossy || is_near, "{question}");
            assert!(lossy || !(1020..1100).contains(&question), "{question}");
        }
    }

    #[test]
    fn slow_is_what_is_slow_for_the_pair() {
        let ms = Duration::from_millis;
        let mut history = History::default();
        let trips = |history: &mut History, rtt: Duration, count: u32| {
            (0..count).for_each(|_| history.round_trip(rtt));
        };
        trips(&mut history, ms(8), 100);
        assert!(!history.is_slow(), "two sites");
        trips(&mut history, ms(60), 7);
        assert!(!history.is_slow(), "one fast reply is enough");
        trips(&mut history, ms(60), 500);
        assert!(history.is_slow(), "the usual round trip stays the same");
        let mut after = history.after_a_break();
        trips(&mut after, ms(60), 4);
        assert!(after.is_slow(), "the usual round trip stays known");
        history.adopt();
        assert!(!history.is_slow());
        let mut new = History::default();
        trips(&mut new, ms(45), 50);
        assert!(!new.is_slow(), "the path was never faster");
    }

    #[test]
    fn median_is_of_the_last_eight_round_trips() {
        let mut history = History::default();
        assert_eq!(history.rtt_us(), None);
        for us in [9_000, 1, 2] {
            history.round_trip(Duration::from_micros(us));
        }
        assert_eq!(history.rtt_us(), Some(2));
        for us in 100..140 {
            history.round_trip(Duration::from_micros(us));
        }
        assert_eq!(history.rtt_us(), Some(136));
    }
}
