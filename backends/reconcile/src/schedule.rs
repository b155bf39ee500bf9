//! Schedules the work of the reconciler, so that frequent events do not occupy a whole CPU.

use netstate::link::LinkKind;
use netstate::object::{KernelState, Value};
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
/// Minimum interval between reads of WireGuard peers, whose changes the kernel does not announce.
const TUNNEL_READ_INTERVAL: Duration = Duration::from_secs(5);
/// As a multiple of the time that a read takes.
const TUNNEL_READ_FACTOR: u32 = 20;
/// This is also the interval of full passes while the desired peers are unknown.
const MAX_TUNNEL_READ_INTERVAL: Duration = Duration::from_secs(20);

pub(super) struct Schedule {
    /// The earliest time for the next full pass.
    pub pass_after: Instant,
    /// The earliest time for the next change.
    pub changes_after: Instant,
    /// `None` without a WireGuard interface.
    pub tunnel_read: Option<Instant>,
    /// It ran because the desired peers were unknown.
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

    pub(super) fn plan_tunnel_read(&mut self, want: &KernelState) {
        let mut links = want
            .0
            .values()
            .map_while(|value| if let Value::Link(spec) = value { Some(spec) } else { None });
        let any = links.any(|spec| matches!(spec.kind, LinkKind::Wireguard(_)));
        self.tunnel_read = any.then(|| Instant::now() + TUNNEL_READ_INTERVAL);
    }

    pub(super) fn tunnels_read(&mut self, began: Instant) {
        let interval = (began.elapsed() * TUNNEL_READ_FACTOR)
            .clamp(TUNNEL_READ_INTERVAL, MAX_TUNNEL_READ_INTERVAL);
        self.tunnel_read = Some(Instant::now() + interval);
    }

    /// True if a pass is due because the desired peers are unknown; records it.
    pub(super) fn take_blind_pass(&mut self, began: Instant) -> bool {
        let due =
            self.last_blind_pass.is_none_or(|last| last.elapsed() >= MAX_TUNNEL_READ_INTERVAL);
        if due {
            self.last_blind_pass = Some(began);
        }
        due
    }
}

/// The pause is a multiple of the duration of the work that began at `began`.
fn pause_end(began: Instant, times: u32) -> Instant {
    Instant::now() + (began.elapsed() * times).clamp(QUIET, MAX_DELAY)
}

/// 50 ms, which doubles with each failure up to 5 s, with 25 % jitter.
pub(super) fn backoff(failures: u32) -> Duration {
    RETRY.after(failures.saturating_sub(1)).mul_f64(rand::rng().random_range(0.75..1.25))
}
