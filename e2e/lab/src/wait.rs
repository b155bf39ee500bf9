//! Waits for conditions, and checks that conditions hold over time. A test that sleeps instead of waiting for a condition gives the reason in a comment.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::turn::slowdown;

/// Minimum and maximum of the pause between two polls; the pause is a tenth of the elapsed time. A poll often starts
/// programs, which take processor time from the other tests.
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(300);
/// Pause between two checks of a condition that has to hold all the time.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// Number of samples of the machine's load at a deadline, and the pause between two samples.
const SAMPLES: u32 = 5;
const SAMPLE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum factor by which load extends a deadline.
const MAX_EXTENSION: f64 = 5.0;

/// Returns whether a wait since `start` has passed its deadline. A deadline applies to an idle machine. If other programs
/// use the processors at the deadline, the wait may take as many times longer as a computation takes longer.
pub(crate) fn has_expired(start: Instant, deadline: Duration) -> bool {
    let elapsed = start.elapsed();
    if elapsed < deadline || elapsed >= deadline.mul_f64(MAX_EXTENSION) {
        return elapsed >= deadline;
    }
    let samples = (0..SAMPLES).filter_map(|_| {
        std::thread::sleep(SAMPLE_PAUSE);
        slowdown()
    });
    elapsed >= deadline.mul_f64(samples.sum::<f64>() / f64::from(SAMPLES))
}

/// Polls until the condition holds. Returns the duration of the wait.
///
/// # Errors
/// Returns an error that names `what` if the condition still does not hold at the deadline.
pub fn eventually(
    deadline: Duration,
    what: &str,
    mut holds: impl FnMut() -> bool,
) -> Result<Duration> {
    let start = Instant::now();
    while !holds() {
        if has_expired(start, deadline) {
            bail!("not within {deadline:?}: {what}");
        }
        pause(start);
    }
    Ok(start.elapsed())
}

/// Repeats an attempt until the attempt succeeds. Returns the attempt's result.
///
/// # Errors
/// Returns the last attempt's error if no attempt succeeds before the deadline.
pub fn eventually_ok<T>(
    deadline: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if has_expired(start, deadline) => {
                return Err(error).with_context(|| format!("not within {deadline:?}: {what}"));
            }
            Err(_) => pause(start),
        }
    }
}

fn pause(start: Instant) {
    std::thread::sleep((start.elapsed() / 10).clamp(MIN_PAUSE, MAX_PAUSE));
}

/// Checks repeatedly during `time` that a condition holds. Tests use this function for events that must not happen, because a test cannot wait for
/// such an event.
///
/// # Errors
/// Returns the first failure, with the time of the failure.
pub fn throughout(time: Duration, what: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    loop {
        let over = start.elapsed() >= time;
        check().with_context(|| {
            format!(
                "the condition did not hold throughout {time:?}; it failed after {:.1?}: {what}",
                start.elapsed()
            )
        })?;
        if over {
            return Ok(());
        }
        std::thread::sleep(WATCH_PAUSE.min(time.saturating_sub(start.elapsed())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_expires_between_its_deadline_and_the_longest_extension() {
        let deadline = Duration::from_secs(2);
        let expired = |seconds: u64| {
            let start = Instant::now().checked_sub(Duration::from_secs(seconds));
            has_expired(start.unwrap(), deadline)
        };
        assert!(!expired(1));
        assert!(expired(10));
        assert!(has_expired(Instant::now(), Duration::ZERO));
    }

    #[test]
    fn throughout_fails_when_the_condition_ends() {
        let start = Instant::now();
        let short = |limit: u64| {
            move || {
                if start.elapsed() < Duration::from_millis(limit) {
                    Ok(())
                } else {
                    bail!("it ended")
                }
            }
        };
        throughout(Duration::from_millis(20), "a long one", short(60_000)).unwrap();
        let error = throughout(Duration::from_secs(60), "a short one", short(50)).unwrap_err();
        assert!(
            format!("{error:#}").contains("a short one: it ended"),
            "{error:#}"
        );
    }
}
