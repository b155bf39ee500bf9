//! Rows of other nodes, and whether a client views them.

use crate::limits::Bucket;
use crate::rows::{self, Body};
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Minimum time between two row requests to a node.
pub(super) const ROW_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which the cache keeps a row.
const ROW_LIFETIME: Duration = Duration::from_secs(300);
/// Minimum time between two rounds of row requests about a failing peer, while no client views rows.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(30);

/// The cached row of another node.
#[derive(Debug, Default)]
pub(super) struct CachedRow {
    pub(crate) asked_at: Duration,
    pub(crate) answered_at: Option<Duration>,
    /// The row in the encoding of the wire, because the cache may contain rows of ten thousand nodes.
    pub bytes: Box<[u8]>,
    pub attempts: u8,
}

impl CachedRow {
    /// Returns the expiry of the row.
    pub(super) fn until(&self) -> Duration {
        self.answered_at.unwrap_or(self.asked_at) + ROW_LIFETIME
    }

    pub(super) fn body(&self) -> Option<Body> {
        self.answered_at?;
        rows::read(&self.bytes)
    }
}

#[derive(Debug)]
pub(super) struct Viewer {
    pub(crate) budget: Bucket,
    pub until: Option<Duration>,
    pub queue: VecDeque<IpNet>,
    pub(crate) filled_at: Option<Duration>,
    pub(crate) troubled_at: Option<Duration>,
    pub(crate) wants_witnesses: bool,
    /// The failing peer that row requests name, by the number of its subnet.
    pub about: Option<u32>,
    pub rows: BTreeMap<IpNet, CachedRow>,
}

impl Viewer {
    pub(super) fn new(budget: Bucket) -> Self {
        Self {
            budget,
            until: None,
            queue: VecDeque::new(),
            filled_at: None,
            troubled_at: None,
            wants_witnesses: false,
            about: None,
            rows: BTreeMap::new(),
        }
    }

    /// Drops nodes that no longer exist.
    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.rows.retain(|key, _| stays(key));
        self.queue.retain(|key| stays(key));
    }

    /// Requests the rows of some other nodes because peers fail: the peer with this subnet number, or all peers.
    pub(super) fn trouble(&mut self, now: Duration, about: Option<u32>) {
        if self
            .troubled_at
            .is_none_or(|at| now.saturating_sub(at) >= TROUBLE_INTERVAL)
        {
            self.troubled_at = Some(now);
            self.wants_witnesses = true;
            self.about = about;
        }
    }

    /// Returns whether the next row request to a node uses the underlay.
    pub(super) fn goes_over_underlay(&self, key: &IpNet) -> bool {
        self.rows
            .get(key)
            .is_none_or(|row| row.attempts.is_multiple_of(2))
    }

    pub(super) fn looks(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns the time of the next work.
    pub(super) fn next(&mut self, now: Duration) -> Option<Duration> {
        if self.wants_witnesses {
            return Some(now);
        }
        if !self.queue.is_empty() {
            return Some(
                self.budget
                    .ready_at(now, 1)
                    .max(now + Duration::from_millis(1)),
            );
        }
        let old = self.rows.values().map(CachedRow::until).min();
        let refill = self.filled_at.map_or(now, |at| at + ROW_INTERVAL);
        let refill = self
            .until
            .filter(|until| now < *until && refill < *until)
            .map(|_| refill);
        refill.into_iter().chain(old).min()
    }
}
