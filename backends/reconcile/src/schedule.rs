//! Schedules the work of the reconciler, so that frequent events do not occupy a whole CPU.

use rand::Rng;
use std::time::Duration;
use tokio::time::Instant;
use types::backoff::Backoff;

/// The loop stops collecting notifications when none has come for so long.
pub(super) const QUIET: Duration = Duration::from_millis(20);
/// The longest time for which the loop collects notifications.
pub(super) const MAX_DELAY: Duration = Duration::from_millis(200);
/// Pauses after a full pass and after a change, as multiples of its duration.
const PAUSE_FACTORS: (u32, u32) = (2, 40);
/// The pause between repairs while another program keeps undoing them.
pub(super) const CONFLICT_PAUSE: Duration = Duration::from_millis(500);
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
pub(super) struct Schedule {
    /// The earliest time for the next full pass.
    pub pass_after: Instant,
    /// The earliest time for the next change.
    pub changes_after: Instant,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self { pass_after: Instant::now(), changes_after: Instant::now() }
    }

    pub(super) fn passed(&mut self, began: Instant) {
        self.pass_after = pause_end(began, PAUSE_FACTORS.0);
        self.changes_after = self.pass_after;
    }

    pub(super) fn changed(&mut self, began: Instant) {
        self.changes_after = pause_end(began, PAUSE_FACTORS.1);
    }
}

/// The pause is a multiple of the duration of the work that began at `began`.
fn pause_end(began: Instant, times: u32) -> Instant {
    Instant::now() + (began.elapsed() * times).clamp(QUIET, MAX_DELAY)
}

/// 50 ms, which doubles with each failure up to 5 s, with 25 % jitter.
pub(super) fn retry_pause(failures: u32) -> Duration {
    RETRY.after(failures.saturating_sub(1)).mul_f64(rand::rng().random_range(0.75..1.25))
}
