//! Rate limits for sent packets: token buckets to which the caller passes the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens that the bucket gains per second.
    pub per_second: f64,
    /// Maximum number of tokens.
    pub burst: f64,
}

/// Limits echo replies to one address.
pub(crate) const ANSWERS_AN_ADDRESS: Rate = Rate { per_second: 20.0, burst: 20.0 };
/// Limits echo replies to all addresses together.
pub const ANSWERS: Rate = Rate { per_second: 2000.0, burst: 2000.0 };
/// Limits replies with reports to one address.
pub(crate) const ROWS_AN_ADDRESS: Rate = Rate { per_second: 2.0, burst: 2.0 };
/// Limits replies with reports to all addresses together. It saves processor time, because a report covers every peer.
pub const ROWS: Rate = Rate { per_second: 50.0, burst: 50.0 };
/// Limits follow-up probes, which determine why a probe got no reply.
pub(crate) const RETRIES: Rate = Rate { per_second: 4.0, burst: 24.0 };
/// Limits probes in the search for a common fault. The burst is enough for one round with each of eight peers. An empty
/// bucket is full again after twelve seconds.
pub(crate) const SEARCHES: Rate = Rate { per_second: 2.0, burst: 24.0 };
/// Limits probes to peers that other nodes report as unreachable. It also bounds the probes that false reports cause.
pub(crate) const HINTS: Rate = Rate { per_second: 1.5, burst: 6.0 };
/// Limits probes that check whether the state of peers with confirmed faults has changed.
pub(crate) const BROKEN_PEERS: Rate = Rate { per_second: 1.0, burst: 6.0 };
/// Limits report requests to other nodes while a client views the reports.
pub(crate) const ROW_QUESTIONS: Rate = Rate { per_second: 100.0, burst: 10.0 };

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Duration,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Duration) -> Self {
        Self { rate, tokens: rate.burst, at: now }
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate.per_second).min(self.rate.burst);
        self.at = self.at.max(now);
    }

    /// Takes `count` tokens, or none and returns false if the bucket has fewer.
    pub(crate) fn take(&mut self, now: Duration, count: u32) -> bool {
        self.take_above(now, count, 0.0)
    }

    /// Takes one token. A call with `spare` leaves half of the burst to calls without `spare`.
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

    /// The time at which the bucket contains `count` tokens, or the whole burst if `count` exceeds it.
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

/// One token bucket for each key. The map drops full buckets, so that only keys in use take memory.
#[derive(Clone, Debug)]
pub struct Buckets<K> {
    rate: Rate,
    buckets: HashMap<K, Bucket>,
    swept: Duration,
}

/// Interval at which the map drops full buckets.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

impl<K: Eq + Hash + Copy> Buckets<K> {
    /// Each new bucket is full.
    pub fn new(rate: Rate) -> Self {
        Self { rate, buckets: HashMap::new(), swept: Duration::ZERO }
    }

    /// A call with `spare` leaves half of the key's burst to calls without it.
    pub fn take(&mut self, key: K, now: Duration, spare: bool) -> bool {
        if now.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        self.buckets.entry(key).or_insert_with(|| Bucket::new(self.rate, now)).take_one(now, spare)
    }
}

/// Rate limits of this node's replies, in total and per address.
pub(crate) struct AnswerLimits {
    echoes: Bucket,
    echoes_to: Buckets<IpAddr>,
    rows: Bucket,
    rows_to: Buckets<IpAddr>,
}

impl AnswerLimits {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            echoes: Bucket::new(ANSWERS, now),
            echoes_to: Buckets::new(ANSWERS_AN_ADDRESS),
            rows: Bucket::new(ROWS, now),
            rows_to: Buckets::new(ROWS_AN_ADDRESS),
        }
    }

    /// False if the node must not send the reply now. A call with `spare` leaves half of each burst to calls without
    /// it.
    pub(crate) fn take_echo(&mut self, to: IpAddr, now: Duration, spare: bool) -> bool {
        self.echoes_to.take(to, now, spare) && self.echoes.take_one(now, spare)
    }

    /// Takes the tokens for a reply with a report, as [`Self::take_echo`].
    pub(crate) fn take_row(&mut self, to: IpAddr, now: Duration, spare: bool) -> bool {
        self.rows_to.take(to, now, spare) && self.rows.take_one(now, spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_gets_the_rate_of_its_address() {
        let mut buckets = Buckets::new(ANSWERS_AN_ADDRESS);
        let mut allowed = 0;
        for step in 0..10_000 {
            allowed += u32::from(buckets.take(1, Duration::from_millis(step), false));
        }
        assert_eq!(allowed, 20 + 199, "the burst, and 20 tokens a second for ten seconds");
        assert!(
            buckets.take(2, Duration::from_secs(10), false),
            "a key takes no tokens of another key"
        );
        assert!(buckets.take(2, Duration::from_secs(100), false));
        assert_eq!(buckets.buckets.len(), 1, "the map drops full buckets");
    }

    #[test]
    fn spare_use_leaves_half_of_the_rate() {
        let mut buckets = Buckets::new(ANSWERS_AN_ADDRESS);
        let mut all = 0;
        for step in 0..10_000 {
            let now = Duration::from_millis(step);
            all += u32::from(buckets.take(1, now, true));
            if step % 100 == 50 {
                assert!(buckets.take(1, now, false), "spare use leaves ten tokens a second");
                all += 1;
            }
        }
        assert!((205..=220).contains(&all), "{all}: the rate is that of both");
    }

    #[test]
    fn bucket_is_ready_once_it_has_enough_tokens() {
        let mut bucket = Bucket::new(RETRIES, Duration::ZERO);
        assert!(bucket.take(Duration::ZERO, 24) && !bucket.take(Duration::ZERO, 1));
        assert_eq!(bucket.ready_at(Duration::ZERO, 3), Duration::from_millis(750));
        assert!(
            !bucket.take(Duration::from_millis(749), 3)
                && bucket.take(Duration::from_millis(751), 3)
        );
        assert!(bucket.ready_at(Duration::ZERO, 100) < Duration::from_secs(7), "never for ever");
        // A clock that stops or goes back adds no tokens.
        assert!(!bucket.take(Duration::ZERO, 3));
    }
}
