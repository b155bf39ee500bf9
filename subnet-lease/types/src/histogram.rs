//! A histogram of durations for metrics. Tasks record durations without a lock; the metrics read a snapshot.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds. They cover round trips on a link, system calls, and requests to slow stores.
pub const BOUNDS: [f64; 16] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// Tasks record durations in it.
///
/// ```
/// use std::time::Duration;
/// use types::Histogram;
///
/// let histogram = Histogram::default();
/// histogram.record(Duration::from_millis(3));
/// histogram.record(Duration::from_secs(20));
/// let durations = histogram.snapshot();
/// assert_eq!((durations.count(), durations.sum), (2, Duration::from_millis(20_003)));
/// assert_eq!(durations.buckets().last(), Some((f64::INFINITY, 1)));
/// ```
#[derive(Debug, Default)]
pub struct Histogram {
    /// One counter per upper bound, and one for longer durations.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// In each bucket, without the durations in smaller ones. The last bucket has no upper bound.
    pub counts: [u64; BOUNDS.len() + 1],
    /// Of all durations.
    pub sum: Duration,
}

impl Histogram {
    pub fn record(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Relaxed);
    }

    pub fn snapshot(&self) -> Durations {
        Durations {
            counts: self.counts.each_ref().map(|count| count.load(Relaxed)),
            sum: Duration::from_micros(self.sum_us.load(Relaxed)),
        }
    }
}

impl Durations {
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The upper bound in seconds and the number of durations of each bucket. The last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        bounds.zip(self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_counted_in_the_bucket_of_its_upper_bound() {
        let histogram = Histogram::default();
        for (us, bucket) in [
            (0, 0),
            (100, 0),
            (101, 1),
            (1000, 3),
            (10_000_000, 15),
            (10_000_001, 16),
            (u64::MAX / 32, 16),
        ] {
            let before = histogram.snapshot();
            histogram.record(Duration::from_micros(us));
            let after = histogram.snapshot();
            let changed: Vec<usize> =
                (0..=BOUNDS.len()).filter(|at| before.counts[*at] != after.counts[*at]).collect();
            assert_eq!(changed, [bucket], "{us} µs");
            assert_eq!(after.sum - before.sum, Duration::from_micros(us));
            assert_eq!(after.count(), before.count() + 1);
        }
        assert_eq!(Durations::default().buckets().count(), BOUNDS.len() + 1);
    }
}
