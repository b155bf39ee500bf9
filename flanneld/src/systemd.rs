//! Notifications to systemd: ready, status, stopping, watchdog.

use crate::health::Health;
use sd_notify::NotifyState;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};
use types::printable;

/// `status` is the line for `systemctl status`.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&line(status))]);
}

/// The line for `systemctl status`.
pub fn status(status: &str) {
    send(&[NotifyState::Status(&line(status))]);
}

/// `status` is the line for `systemctl status`.
pub fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(&line(status))]);
}

/// In a notification to systemd, a newline would begin another assignment.
fn line(text: &str) -> String {
    printable::line(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

fn send(states: &[NotifyState<'_>]) {
    // A failure is harmless: without systemd, nothing receives the notification.
    if let Err(error) = sd_notify::notify(states) {
        debug!(error = %error, "cannot reach systemd");
    }
}

/// Pings systemd's watchdog twice per watchdog period while all tasks send heartbeats, until `stop`. Ends at once if
/// the unit sets no watchdog.
pub async fn watchdog(health: Health, stop: CancellationToken) {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return;
    };
    let mut logged = false;
    let run = async {
        let mut ticks = tokio::time::interval((period / 2).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let silent = health.silent_tasks();
            if silent.is_empty() {
                send(&[NotifyState::Watchdog]);
            } else if !logged {
                error!(
                    error = %line(&silent.join("\n")),
                    "no longer pinging systemd's watchdog, which will restart this daemon"
                );
            }
            logged = !silent.is_empty();
        }
    };
    stop.run_until_cancelled(run).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_one_printable_line() {
        assert_eq!(line("a\nREADY=1\r\n b "), "a READY=1 b");
        assert_eq!(line("a\u{1b}[2J\u{202e}"), r"a\u{1b}[2J\u{202e}");
    }
}
