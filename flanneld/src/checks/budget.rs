//! Limits the log lines about findings, because a fault may appear and disappear repeatedly for hours.

use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of log lines at once.
const LINES: u32 = 20;
/// Time after which the budget allows one more line.
const REFILL: Duration = Duration::from_secs(6);

/// Minimum interval between lines that report the number of omitted lines.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    /// Time from which the budget measures the time until the next refill.
    counted: Option<Instant>,
    /// Lines omitted since the last summary.
    unlogged: usize,
    told: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: LINES, counted: None, unlogged: 0, told: None }
    }
}

impl Budget {
    /// Takes up to `lines` log lines, and returns their number.
    pub(super) fn take(&mut self, now: Instant, lines: usize) -> usize {
        let since = *self.counted.get_or_insert(now);
        let refills = now.saturating_duration_since(since).as_millis() / REFILL.as_millis();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(refills).min(LINES);
        self.counted = Some(if self.left == LINES { now } else { since + REFILL * refills });
        let taken = u32::try_from(lines).unwrap_or(u32::MAX).min(self.left);
        self.left -= taken;
        let taken = usize::try_from(taken).unwrap_or(usize::MAX);
        self.unlogged += lines.saturating_sub(taken);
        taken
    }

    /// The number of omitted lines, if a summary is due.
    pub(super) fn summary(&mut self, now: Instant) -> Option<usize> {
        let is_time =
            self.told.is_none_or(|told| now.saturating_duration_since(told) >= SUMMARY_INTERVAL);
        if self.unlogged == 0 || !is_time {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_return_with_time() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut budget = Budget::default();
        assert_eq!(budget.take(at(0), 5), 5);
        assert_eq!(budget.take(at(0), 100), 15);
        assert_eq!(budget.take(at(5), 1), 0);
        assert_eq!(budget.take(at(6), 3), 1);
        assert_eq!(budget.take(at(17), 3), 1, "the budget keeps the rest of a refill interval");
        assert_eq!(budget.take(at(18), 3), 1);
        assert_eq!(budget.take(at(10_000), 1000), 20);
        let an_hour: usize = (0..3600).map(|second| budget.take(at(20_000 + second), 9)).sum();
        assert!((600..=625).contains(&an_hour), "{an_hour}");
        let unlogged = 3600 * 9 - an_hour + 980 + 2 + 2 + 2 + 1 + 85;
        assert_eq!(budget.summary(at(30_000)), Some(unlogged));
        assert_eq!(budget.take(at(30_000), 30), 20);
        assert_eq!(budget.summary(at(30_059)), None, "once a minute");
        assert_eq!(budget.summary(at(30_060)), Some(10));
        assert_eq!(budget.summary(at(40_000)), None, "nothing more");
    }
}
