//! Conditions with a deadline: the only way in which a test waits.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// Asks again and again until the condition holds; tells how long that took.
///
/// # Errors
/// When it still does not hold at the deadline; the error names `what`.
pub fn eventually(deadline: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Result<Duration> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    while !holds() {
        if start.elapsed() >= deadline {
            bail!("not within {deadline:?}: {what}");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
    }
    Ok(start.elapsed())
}

/// Tries again and again until it succeeds; hands its value out.
///
/// # Errors
/// The last failure, once the deadline has passed.
pub fn eventually_ok<T>(deadline: Duration, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() >= deadline => return Err(error).with_context(|| format!("not within {deadline:?}: {what}")),
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
