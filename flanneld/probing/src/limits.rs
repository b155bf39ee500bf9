//! How much is sent: buckets of tokens, on a clock that the caller reads.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// A rate, and how much of it may be used at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens a second.
    pub per_second: f64,
    /// The most that gather.
    pub burst: f64,
}

/// Answers to one address.
pub(crate) const ANSWERS_AN_ADDRESS: Rate = Rate {
    per_second: 20.0,
    burst: 20.0,
};
/// Answers in all.
pub const ANSWERS: Rate = Rate {
    per_second: 2000.0,
    burst: 2000.0,
};
/// Row answers to one viewer's address.
pub(crate) const ROWS_AN_ADDRESS: Rate = Rate {
    per_second: 2.0,
    burst: 2.0,
};
/// Row answers in all: each costs a look at every peer.
pub const ROWS: Rate = Rate {
    per_second: 50.0,
    burst: 50.0,
};
/// Questions that repeat what was not answered.
pub(crate) const RETRIES: Rate = Rate {
    per_second: 4.0,
    burst: 12.0,
};
/// Pings: of peers that do not answer questions.
pub const PINGS: Rate = Rate {
    per_second: 8.0,
    burst: 16.0,
};
/// Row questions while somebody looks.
pub(crate) const ROW_QUESTIONS: Rate = Rate {
    per_second: 100.0,
    burst: 10.0,
};

/// Tokens that come back with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Duration,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(rate: Rate, now: Duration) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            at: now,
        }
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate.per_second).min(self.rate.burst);
        self.at = self.at.max(now);
    }

    /// Takes this many tokens; false, and none taken, if there are not as many.
    pub(crate) fn take(&mut self, now: Duration, count: u32) -> bool {
        self.take_above(now, count, 0.0)
    }

    /// Takes a token; only if half of all are left, where `spare` says so.
    pub(crate) fn take_one(&mut self, now: Duration, spare: bool) -> bool {
        self.take_above(now, 1, if spare { self.rate.burst / 2.0 } else { 0.0 })
    }

    fn take_above(&mut self, now: Duration, count: u32, rest: f64) -> bool {
        self.refill(now);
        let enough = self.tokens >= f64::from(count) + rest;
        if enough {
            self.tokens -= f64::from(count);
        }
        enough
    }

    /// When there are this many tokens.
    pub(crate) fn ready_at(&mut self, now: Duration, count: u32) -> Duration {
        self.refill(now);
        let missing = (f64::from(count).min(self.rate.burst) - self.tokens).max(0.0);
        now + Duration::from_secs_f64(missing / self.rate.per_second)
    }

    fn is_full(&mut self, now: Duration) -> bool {
        self.refill(now);
        self.tokens >= self.rate.burst
    }
}

/// A bucket for each key. Full ones are forgotten, so that there are only as many as keys in use.
#[derive(Clone, Debug)]
pub struct Buckets<K> {
    rate: Rate,
    buckets: HashMap<K, Bucket>,
    swept: Duration,
}

/// How often full buckets are forgotten.
const SWEEP: Duration = Duration::from_secs(10);

impl<K: Eq + Hash + Copy> Buckets<K> {
    /// No key yet.
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            buckets: HashMap::new(),
            swept: Duration::ZERO,
        }
    }

    /// Takes a token of a key; only if half of its tokens are left, where `spare` says so.
    pub fn take(&mut self, key: K, now: Duration, spare: bool) -> bool {
        if now.saturating_sub(self.swept) >= SWEEP {
            self.swept = now;
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        self.buckets
            .entry(key)
            .or_insert_with(|| Bucket::new(self.rate, now))
            .take_one(now, spare)
    }

    /// How many keys are known.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_the_rate() {
        let mut buckets = Buckets::new(ANSWERS_AN_ADDRESS);
        let mut allowed = 0;
        for step in 0..10_000 {
            allowed += u32::from(buckets.take(1, Duration::from_millis(step), false));
        }
        assert_eq!(
            allowed,
            20 + 199,
            "the burst, and 20 a second for ten seconds"
        );
        assert!(
            buckets.take(2, Duration::from_secs(10), false),
            "one key does not cost another its tokens"
        );
        assert!(buckets.take(2, Duration::from_secs(100), false));
        assert_eq!(buckets.len(), 1, "a full bucket is not kept");
    }

    #[test]
    fn who_has_to_spare_leaves_half() {
        let mut buckets = Buckets::new(ANSWERS_AN_ADDRESS);
        let mut all = 0;
        for step in 0..10_000 {
            let now = Duration::from_millis(step);
            all += u32::from(buckets.take(1, now, true));
            if step % 100 == 50 {
                assert!(
                    buckets.take(1, now, false),
                    "ten a second are left, whatever comes beside them"
                );
                all += 1;
            }
        }
        assert!(
            (205..=220).contains(&all),
            "{all}: the rate is that of both"
        );
    }

    #[test]
    fn waits_for_as_many_as_it_needs() {
        let mut bucket = Bucket::new(RETRIES, Duration::ZERO);
        assert!(bucket.take(Duration::ZERO, 12) && !bucket.take(Duration::ZERO, 1));
        assert_eq!(
            bucket.ready_at(Duration::ZERO, 3),
            Duration::from_millis(750)
        );
        assert!(
            !bucket.take(Duration::from_millis(749), 3)
                && bucket.take(Duration::from_millis(751), 3)
        );
        assert!(
            bucket.ready_at(Duration::ZERO, 100) < Duration::from_secs(4),
            "never for ever"
        );
        // A clock that stands still, or goes back, gives nothing.
        assert!(!bucket.take(Duration::ZERO, 3));
    }
}
