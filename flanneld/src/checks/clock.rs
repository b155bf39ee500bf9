//! Whether this host's clock was set back: WireGuard's peers refuse handshakes with an earlier time than the last one had.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use subnet_lease::manager::boot_time;

/// A leap second is no setting of the clock.
const STEP: Duration = Duration::from_secs(3);

/// The time at which this host started, by its clock: it moves when the clock is set, and with nothing else.
#[derive(Debug, Default)]
pub(super) struct Clock {
    latest: Option<Duration>,
}

impl Clock {
    /// By how many seconds the clock is behind what it was since this program started.
    pub(super) fn behind(&mut self) -> Option<u64> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.behind_at(now.saturating_sub(boot_time()))
    }

    fn behind_at(&mut self, started: Duration) -> Option<u64> {
        let latest = self.latest.map_or(started, |latest| latest.max(started));
        self.latest = Some(latest);
        Some(latest.saturating_sub(started))
            .filter(|behind| *behind >= STEP)
            .map(|behind| behind.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_set_back_is_reported_until_it_is_set_forward() {
        let mut clock = Clock::default();
        let seen = [1000, 1001, 1000, 400, 400, 999, 1001, 5000, 4000]
            .map(|second| clock.behind_at(Duration::from_secs(second)));
        assert_eq!(
            seen,
            [
                None,
                None,
                None,
                Some(601),
                Some(601),
                None,
                None,
                None,
                Some(1000)
            ]
        );
        assert_eq!(Clock::default().behind(), None);
    }
}
