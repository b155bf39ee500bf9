//! What is known of other nodes' rows, and whether somebody looks.

use crate::limits::Bucket;
use crate::rows::{self, Body};
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How often a node is asked, at most.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// How long a row is kept.
const KEEP: Duration = Duration::from_secs(300);
/// How often others are asked about a peer in trouble, while nobody looks.
const TROUBLE_EVERY: Duration = Duration::from_secs(30);

/// What is known of another node's row.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(crate) asked_at: Duration,
    pub(crate) said_at: Option<Duration>,
    /// As on the wire: rows of ten thousand nodes are kept.
    pub bytes: Box<[u8]>,
    pub attempts: u8,
}

impl Row {
    /// Until when it is kept.
    pub(super) fn until(&self) -> Duration {
        self.said_at.unwrap_or(self.asked_at) + KEEP
    }

    pub(super) fn body(&self) -> Option<Body> {
        self.said_at?;
        rows::read(&self.bytes)
    }
}

/// The side that asks.
#[derive(Debug)]
pub(super) struct Viewer {
    pub(crate) budget: Bucket,
    pub until: Option<Duration>,
    pub queue: VecDeque<IpNet>,
    pub(crate) filled_at: Option<Duration>,
    pub(crate) troubled_at: Option<Duration>,
    pub(crate) wants_witnesses: bool,
    pub rows: BTreeMap<IpNet, Row>,
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
            rows: BTreeMap::new(),
        }
    }

    /// Leaves out nodes that are gone.
    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.rows.retain(|key, _| stays(key));
        self.queue.retain(|key| stays(key));
    }

    /// A peer is in trouble: some others are asked what they see.
    pub(super) fn trouble(&mut self, now: Duration) {
        if self
            .troubled_at
            .is_none_or(|at| now.saturating_sub(at) >= TROUBLE_EVERY)
        {
            self.troubled_at = Some(now);
            self.wants_witnesses = true;
        }
    }

    /// Whether the next question to a node goes beside the overlay network.
    pub(super) fn goes_over_underlay(&self, key: &IpNet) -> bool {
        self.rows
            .get(key)
            .is_none_or(|row| row.attempts.is_multiple_of(2))
    }

    pub(super) fn looks(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// When there is something to do.
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
        let old = self.rows.values().map(Row::until).min();
        let refill = self.filled_at.map_or(now, |at| at + EVERY);
        let refill = self
            .until
            .filter(|until| now < *until && refill < *until)
            .map(|_| refill);
        refill.into_iter().chain(old).min()
    }
}
