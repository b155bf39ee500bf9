//! Limits the time for which packet threads may have priority, so that they starve no program.

use std::time::{Duration, Instant};

/// The share of processor time that a budget grants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Numerator and denominator.
    pub(super) of: (u32, u32),
    /// Maximum unused time that accumulates.
    pub(super) most: Duration,
}

impl Part {
    /// For one packet thread. It leaves a fifth of the processor to threads that cannot run on others, such
    /// as ksoftirqd.
    pub(super) const THREAD: Self = Self { of: (4, 5), most: Duration::from_millis(2) };

    /// For all packet threads together: a quarter of the processors. So two daemons on one machine (two
    /// networks, or a test environment) leave half of them to other programs.
    pub(super) fn quarter_of(processors: u32) -> Self {
        Self {
            of: (processors.max(1), 4),
            most: Duration::from_millis(1).saturating_mul(processors.max(1)),
        }
    }
}

/// A token bucket of time.
#[derive(Debug)]
pub(super) struct Budget {
    part: Part,
    left: Duration,
    /// Time used beyond the budget, because a batch is not interrupted.
    debt: Duration,
    looked: Instant,
    /// Whether the budget was used up, and less than half of it is available again.
    spent: bool,
}

impl Budget {
    /// The budget is full.
    pub(super) fn new(part: Part, now: Instant) -> Self {
        Self { part, left: part.most, debt: Duration::ZERO, looked: now, spent: false }
    }

    /// Takes off the time `ahead` that a thread had priority. True if the threads may have priority from now
    /// on.
    pub(super) fn charge_used_time(&mut self, now: Instant, ahead: Duration) -> bool {
        let Part { of: (numerator, denominator), most } = self.part;
        // One second fills any budget. The limit prevents an overflow.
        let time = now.saturating_duration_since(self.looked).min(Duration::from_secs(1));
        self.looked = self.looked.max(now);
        let gained = time.saturating_mul(numerator) / denominator.max(1);
        let (have, owe) = (self.left + gained, self.debt + ahead);
        self.left = have.saturating_sub(owe).min(most);
        self.debt = owe.saturating_sub(have);
        if self.left.is_zero() {
            self.spent = true;
        } else if self.left >= most / 2 {
            self.spent = false;
        }
        !self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: Duration = Duration::from_micros(250);

    /// The time that `threads` threads have priority within one second if all of them always have work.
    fn simulate_priority_time_in_second(
        budget: &mut Budget,
        threads: u32,
        start: Instant,
    ) -> Duration {
        let (mut ahead, mut may) = (Duration::ZERO, true);
        for number in 1..=4000 {
            let spent = if may { STEP * threads } else { Duration::ZERO };
            ahead += spent;
            may = budget.charge_used_time(start + STEP * number, spent);
        }
        ahead
    }

    #[test]
    fn busy_threads_go_ahead_for_their_part_of_the_time() {
        let now = Instant::now();
        for (part, threads, wanted) in [
            (Part::THREAD, 1, 0.8),
            (Part::quarter_of(2), 2, 0.5),
            (Part::quarter_of(2), 1, 0.5),
            (Part::quarter_of(8), 8, 2.0),
            (Part::quarter_of(1), 3, 0.25),
        ] {
            let ahead = simulate_priority_time_in_second(&mut Budget::new(part, now), threads, now)
                .as_secs_f64();
            assert!(
                (wanted - 0.01..wanted + 0.03).contains(&ahead),
                "{threads} threads, {part:?}: {ahead}"
            );
        }
    }

    #[test]
    fn a_long_wait_saves_up_no_more_than_a_moment() {
        let now = Instant::now();
        let mut budget = Budget::new(Part::THREAD, now);
        let later = now + Duration::from_secs(86_400);
        assert!(budget.charge_used_time(later, Duration::ZERO));
        assert!(!budget.charge_used_time(later + Part::THREAD.most, Part::THREAD.most * 2));
        // A clock that seems to go back adds nothing either.
        assert!(!budget.charge_used_time(now, Duration::ZERO));
    }

    proptest! {
        /// For any sequence of work and waits: at most the share, the saved budget and one batch.
        #[test]
        fn never_more_than_the_part(steps in prop::collection::vec((0_u64..3000, 0_u64..=100), 1..500)) {
            let start = Instant::now();
            let mut budget = Budget::new(Part::THREAD, start);
            let (mut time, mut ahead, mut may) = (Duration::ZERO, Duration::ZERO, true);
            let mut longest = Duration::ZERO;
            for (micros, percent) in steps {
                let step = Duration::from_micros(micros);
                let spent = if may { step * u32::try_from(percent).unwrap_or(0) / 100 } else { Duration::ZERO };
                time += step;
                ahead += spent;
                longest = longest.max(spent);
                may = budget.charge_used_time(start + time, spent);
            }
            prop_assert!(ahead <= time * 4 / 5 + Part::THREAD.most + longest, "{ahead:?} of {time:?}");
        }
    }
}
