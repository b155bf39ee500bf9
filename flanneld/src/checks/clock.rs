//! Detects that a program or an operator set this host's clock back. WireGuard peers ignore a handshake whose time is earlier than the time of the last handshake.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use subnet_lease::manager::boot_time;

/// Smallest clock difference that the doctor reports. The difference exceeds a leap second.
const STEP: Duration = Duration::from_secs(3);

/// The latest boot time of this host, which is the wall clock minus the uptime. The boot time changes only when a program or an operator sets the clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    latest: Option<Duration>,
}

impl Clock {
    /// Returns the number of seconds by which the clock is behind its most advanced setting since this program started; `None` below [`STEP`].
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
