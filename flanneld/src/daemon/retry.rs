//! Retries of the daemon: for two seconds while the previous daemon may still hold a resource, and indefinitely while
//! the store does not respond.

use super::end::EndError;
use crate::health::Health;
use crate::health::condition::Condition;
use crate::systemd;
use std::time::Duration;
use subnet_lease::manager::Error;
use subnet_lease::reason::LogOnce;
use tracing::warn;
use types::backoff::Backoff;

/// Delay between two queries while the store does not respond.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Retries for two seconds, because the previous daemon may still hold the resource. The error is that of the last
/// attempt.
pub(super) async fn briefly<T, E, F: Future<Output = Result<T, E>>>(
    attempt: impl Fn() -> F,
) -> Result<T, E> {
    const LIMIT: Duration = Duration::from_secs(2);
    let begun = tokio::time::Instant::now();
    loop {
        match attempt().await {
            Err(_) if begun.elapsed() <= LIMIT => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            result => return result,
        }
    }
}

/// Logs each new error of the store once. Fails if the store permanently refuses the query.
pub(super) async fn until_available<T, F: Future<Output = Result<T, Error>>>(
    health: &Health,
    condition: Condition,
    ask: impl Fn() -> F,
) -> Result<T, EndError> {
    let mut logged = LogOnce::default();
    let mut failures = 0;
    loop {
        match ask().await {
            Ok(answer) => {
                health.clear(condition);
                return Ok(answer);
            }
            Err(Error::Refused(why)) => return Err(EndError::failed(why)),
            Err(Error::Unavailable(why)) => {
                health.fail(condition, why.clone());
                if logged.news(Some(&why)) {
                    warn!(code = %why.code, error = %why, "waiting");
                    systemd::status(&format!("waiting: {why}"));
                }
            }
        }
        tokio::time::sleep(RETRY.after(failures).mul_f64(1.0 + rand::random::<f64>() / 2.0)).await;
        failures += 1;
    }
}
