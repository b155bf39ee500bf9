//! Schedules the work of the reconciler, so that frequent events do not occupy a whole CPU.

use crate::link::LinkKind;
use crate::object::{KernelState, Value};
use rand::Rng;
use std::time::Duration;
use tokio::time::Instant;
use types::backoff::Backoff;

/// Time without a notification after which the loop stops collecting notifications.
pub(super) const QUIET: Duration = Duration::from_millis(20);
/// Maximum time for which the loop collects notifications.
pub(super) const MAX_DELAY: Duration = Duration::from_millis(200);
/// The pauses after a full pass and after a change, as multiples of the duration of the pass or change.
const PAUSE_FACTORS: (u32, u32) = (2, 40);
/// The pause between repairs while another program keeps undoing these repairs.
pub(super) const CONFLICT_PAUSE: Duration = Duration::from_millis(500);
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
/// Minimum interval between reads of WireGuard peers. The kernel does not announce changes of WireGuard peers.
const TUNNEL_READ_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between two reads of the WireGuard peers, as a multiple of the time that a read takes.
const TUNNEL_READ_FACTOR: u32 = 20;
/// Maximum interval between reads of WireGuard peers. While the desired peers are unknown, this constant is also the interval of full passes.
const MAX_TUNNEL_READ_INTERVAL: Duration = Duration::from_secs(20);

pub(super) struct Schedule {
    /// The earliest time for the next full pass.
    pub pass_after: Instant,
    /// The earliest time at which the loop applies the next change.
    pub changes_after: Instant,
    /// The time of the next read of the WireGuard peers, or `None` without a WireGuard interface.
    pub tunnel_read: Option<Instant>,
    /// The time of the last pass that ran because the desired peers were unknown.
    last_blind_pass: Option<Instant>,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            pass_after: Instant::now(),
            changes_after: Instant::now(),
            tunnel_read: None,
            last_blind_pass: None,
        }
    }

    pub(super) fn passed(&mut self, began: Instant) {
        self.pass_after = pause_end(began, PAUSE_FACTORS.0);
        self.changes_after = self.pass_after;
    }

    pub(super) fn changed(&mut self, began: Instant) {
        self.changes_after = pause_end(began, PAUSE_FACTORS.1);
    }

    /// Schedules the next read of the WireGuard peers after a pass.
    pub(super) fn plan_tunnel_read(&mut self, want: &KernelState) {
        let mut links = want
            .0
            .values()
            .map_while(|value| if let Value::Link(spec) = value { Some(spec) } else { None });
        let any = links.any(|spec| matches!(spec.kind, LinkKind::Wireguard(_)));
        self.tunnel_read = any.then(|| Instant::now() + TUNNEL_READ_INTERVAL);
    }

    /// Schedules the next read of the WireGuard peers after a read.
    pub(super) fn tunnels_read(&mut self, began: Instant) {
        let interval = (began.elapsed() * TUNNEL_READ_FACTOR)
            .clamp(TUNNEL_READ_INTERVAL, MAX_TUNNEL_READ_INTERVAL);
        self.tunnel_read = Some(Instant::now() + interval);
    }

    /// Returns whether a pass is due because the desired peers are unknown. If a pass is due, this function also records the pass.
    pub(super) fn take_blind_pass(&mut self, began: Instant) -> bool {
        let due =
            self.last_blind_pass.is_none_or(|last| last.elapsed() >= MAX_TUNNEL_READ_INTERVAL);
        if due {
            self.last_blind_pass = Some(began);
        }
        due
    }
}

/// Returns the end of the pause after work that began at `began`. The pause is a multiple of the work's duration.
fn pause_end(began: Instant, times: u32) -> Instant {
    Instant::now() + (began.elapsed() * times).clamp(QUIET, MAX_DELAY)
}

/// Returns the delay before a retry: 50 ms, which doubles with each failure up to 5 s, with 25 % jitter.
pub(super) fn backoff(failures: u32) -> Duration {
    RETRY.after(failures.saturating_sub(1)).mul_f64(rand::rng().random_range(0.75..1.25))
}
