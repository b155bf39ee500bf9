//! A point in time that takes half the memory of a `Duration`, also as an `Option`. Each peer stores many points in time.

use std::num::NonZeroU64;
use std::time::Duration;

/// A point in time as microseconds on a monotonic clock, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(NonZeroU64);

impl From<Duration> for Moment {
    fn from(at: Duration) -> Self {
        Self(
            NonZeroU64::new(u64::try_from(at.as_micros()).unwrap_or(u64::MAX))
                .unwrap_or(NonZeroU64::MIN),
        )
    }
}

impl From<Moment> for Duration {
    fn from(Moment(micros): Moment) -> Self {
        Duration::from_micros(micros.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_keeps_microseconds_and_is_half_a_duration() {
        for at in [1, 999_999, 1_000_000, 86_400_000_000].map(Duration::from_micros) {
            assert_eq!(Duration::from(Moment::from(at + Duration::from_nanos(999))), at);
        }
        assert_eq!(Duration::from(Moment::from(Duration::ZERO)), Duration::from_micros(1));
        assert_eq!(size_of::<Option<Moment>>() * 2, size_of::<Option<Duration>>());
    }
}
