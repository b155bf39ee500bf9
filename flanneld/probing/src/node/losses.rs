//! Counts the sent and lost probes of a node in a sliding window.

use std::time::Duration;

/// In seconds. The window counts the probes of each interval separately.
const STEP: u64 = 60;
const STEPS: u64 = 5;
/// Time over which the window counts losses.
pub(super) const LOSS_WINDOW: Duration = Duration::from_secs(STEP * STEPS);

/// Numbers of sent and lost probes over the overlay to peers without a fault, in the last five minutes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    step: u64,
    counts: [(u32, u32); STEPS as usize],
}

impl Losses {
    /// Drops the counts of intervals that are older than the window.
    fn advance(&mut self, now: Duration) {
        let step = now.as_secs() / STEP;
        for old in self.step + 1..=step.min(self.step + STEPS) {
            if let Some(count) = self.counts.get_mut((old % STEPS) as usize) {
                *count = (0, 0);
            }
        }
        self.step = self.step.max(step);
    }

    pub(super) fn count(&mut self, now: Duration, (asked, lost): (u32, u32)) {
        self.advance(now);
        if let Some(count) = self.counts.get_mut((self.step % STEPS) as usize) {
            *count = (count.0.saturating_add(asked), count.1.saturating_add(lost));
        }
    }

    /// The numbers of sent and lost probes in the window.
    pub(super) fn sum(mut self, now: Duration) -> (u32, u32) {
        self.advance(now);
        self.counts.iter().fold((0, 0), |sum: (u32, u32), count| {
            (sum.0.saturating_add(count.0), sum.1.saturating_add(count.1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_the_last_five_minutes_count() {
        let s = Duration::from_secs;
        let mut losses = Losses::default();
        for second in 0..1000 {
            losses.count(s(second), (2, u32::from(second < 700)));
        }
        let (asked, lost) = losses.sum(s(999));
        assert!((500..=600).contains(&asked), "{asked}");
        assert_eq!(lost, 0, "the losses ended five minutes ago");
        assert_eq!(losses.sum(s(1100)).0, 2 * 160, "840 to 999");
        assert_eq!(losses.sum(s(9999)), (0, 0));
        // A clock that stops or goes back loses no counts.
        losses.count(s(10), (1, 1));
        assert_eq!(losses.sum(s(10)).1, 1);
    }
}
