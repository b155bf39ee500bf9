//! Exponential backoff: delays after repeated failures.

use std::time::Duration;

/// The delay doubles with each failure.
///
/// ```
/// use std::time::Duration;
/// use types::backoff::Backoff;
///
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// let delays = [0, 1, 2, 3, 4, 5, 6].map(|failures| backoff.after(failures).as_secs());
/// assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    least: Duration,
    most: Duration,
}

impl Backoff {
    /// Begins with `least` and never exceeds `most`.
    #[must_use]
    pub const fn new(least: Duration, most: Duration) -> Self {
        Self { least, most }
    }

    /// `failures` counts those before this one.
    #[must_use]
    pub fn after(self, failures: u32) -> Duration {
        1u32.checked_shl(failures)
            .and_then(|times| self.least.checked_mul(times))
            .map_or(self.most, |pause| pause.min(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_most() {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let pauses: Vec<u128> =
            (0..9).map(|failures| backoff.after(failures).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        for failures in [31, 32, 64, u32::MAX] {
            assert_eq!(backoff.after(failures), Duration::from_secs(5));
        }
    }
}
