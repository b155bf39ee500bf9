//! How every test waits. A wait has no deadline of its own: one guard for the whole test ends a test that hangs, with what it waits for.

#[cfg(feature = "tokio")]
use std::future::Future;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The shortest and the longest pause between two polls; it is a tenth of the elapsed time. A poll often starts programs, which take processor time
/// from the other tests.
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(300);
/// A wait hangs after this time if nobody has set a guard.
const HANGS: Duration = Duration::from_secs(180);

/// The end of the test that runs in this process, if the runner has set one: `FLANNEL_TEST_GUARD` is the test's time in seconds.
static GUARD: LazyLock<Option<(Instant, Duration)>> = LazyLock::new(|| {
    let seconds = std::env::var("FLANNEL_TEST_GUARD").ok()?.parse().ok()?;
    Some((Instant::now(), Duration::from_secs(seconds)))
});

pub struct Wait {
    start: Instant,
    guard: (Instant, Duration),
}

impl Wait {
    pub fn start() -> Wait {
        let start = Instant::now();
        Wait { start, guard: GUARD.unwrap_or((start, HANGS)) }
    }

    /// The time until the guard, at least a millisecond.
    pub fn left(&self) -> Duration {
        let (begun, time) = self.guard;
        time.saturating_sub(begun.elapsed()).max(Duration::from_millis(1))
    }

    /// Fails at the test's guard, and names `what`.
    pub fn pause_or_time_out(&self, what: &str) -> Result<()> {
        std::thread::sleep(self.next_pause(what)?);
        Ok(())
    }

    pub fn is_over(&self) -> bool {
        let (begun, time) = self.guard;
        begun.elapsed() >= time
    }

    fn next_pause(&self, what: &str) -> Result<Duration> {
        if self.is_over() {
            bail!("the test hangs: it has waited {:.0?} so that {what}", self.start.elapsed());
        }
        Ok((self.start.elapsed() / 10).clamp(MIN_PAUSE, MAX_PAUSE))
    }
}

/// Starts the time of the runner's guard, which the first wait starts otherwise.
pub fn start_test_time_limit() {
    LazyLock::force(&GUARD);
}

/// The result is the duration of the wait. Fails at the test's guard, and names `what`.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<Duration> {
    let wait = Wait::start();
    while !holds() {
        wait.pause_or_time_out(what)?;
    }
    Ok(wait.start.elapsed())
}

/// Repeats an attempt until it succeeds. At the test's guard, fails with the last error.
pub fn until_ok<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let wait = Wait::start();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => {
                wait.pause_or_time_out(what).map_err(|hangs| error.context(hangs.to_string()))?;
            }
        }
    }
}

/// Like [`until`], while the tasks of the runtime go on.
#[cfg(feature = "tokio")]
pub async fn until_async(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let wait = Wait::start();
    while !holds() {
        tokio::time::sleep(wait.next_pause(what)?).await;
    }
    Ok(())
}

/// What the future gives. Fails at the test's guard, and names `what`.
#[cfg(feature = "tokio")]
pub async fn complete<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let left = Wait::start().left();
    tokio::time::timeout(left, future)
        .await
        .map_err(|_| anyhow::anyhow!("the test hangs: it has waited {left:.0?} so that {what}"))
}
