//! Other nodes' rows, asked for while somebody looks.

use super::{Node, Now, Waiting, What};
use crate::limits::Bucket;
use crate::rows::{self, Body};
use crate::state::{Harm, State};
use crate::wire::Header;
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long after a look others are asked.
const LOOK: Duration = Duration::from_secs(10);
/// How often a node is asked, at most.
const EVERY: Duration = Duration::from_secs(5);
/// How long a row is kept.
const KEEP: Duration = Duration::from_secs(300);
/// How many others are asked about a peer in trouble,
const WITNESSES: usize = 16;
/// and how often, while nobody looks.
const TROUBLE_EVERY: Duration = Duration::from_secs(30);

/// What is known of another node's row.
#[derive(Debug, Default)]
pub struct Row {
    pub asked_at: Duration,
    pub said_at: Option<Duration>,
    /// As it came in: rows of ten thousand nodes are kept.
    pub bytes: Box<[u8]>,
    attempts: u8,
}

impl Row {
    /// Until when it is kept.
    fn until(&self) -> Duration {
        self.said_at.unwrap_or(self.asked_at) + KEEP
    }

    pub fn body(&self) -> Option<Body> {
        self.said_at?;
        rows::read(&self.bytes)
    }
}

/// The side that asks.
#[derive(Debug)]
pub struct Viewer {
    budget: Bucket,
    until: Option<Duration>,
    queue: VecDeque<IpNet>,
    filled_at: Option<Duration>,
    troubled_at: Option<Duration>,
    wants_witnesses: bool,
    pub rows: BTreeMap<IpNet, Row>,
}

impl Viewer {
    pub fn new(budget: Bucket) -> Self {
        Self { budget, until: None, queue: VecDeque::new(), filled_at: None, troubled_at: None, wants_witnesses: false, rows: BTreeMap::new() }
    }

    /// Leaves out nodes that are gone.
    pub fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.rows.retain(|key, _| stays(key));
        self.queue.retain(|key| stays(key));
    }

    /// A peer is in trouble: some others are asked what they see.
    pub fn trouble(&mut self, now: Duration) {
        if self.troubled_at.is_none_or(|at| now.saturating_sub(at) >= TROUBLE_EVERY) {
            self.troubled_at = Some(now);
            self.wants_witnesses = true;
        }
    }

    /// Whether the next question to a node goes beside the overlay network.
    pub fn goes_beside(&self, key: &IpNet) -> bool {
        self.rows.get(key).is_none_or(|row| row.attempts.is_multiple_of(2))
    }

    fn looks(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// When there is something to do.
    pub fn next(&mut self, now: Duration) -> Option<Duration> {
        if self.wants_witnesses {
            return Some(now);
        }
        if !self.queue.is_empty() {
            return Some(self.budget.ready_at(now, 1).max(now + Duration::from_millis(1)));
        }
        let old = self.rows.values().map(Row::until).min();
        let refill = self.filled_at.map_or(now, |at| at + EVERY);
        let refill = self.until.filter(|until| now < *until && refill < *until).map(|_| refill);
        refill.into_iter().chain(old).min()
    }
}

impl Node {
    /// Somebody looks at other nodes' rows: they are asked for the next ten seconds.
    pub fn look(&mut self, now: Now) {
        self.viewer.until = Some(now.at + LOOK);
    }

    pub(super) fn ask_rows(&mut self, now: Now) {
        if std::mem::take(&mut self.viewer.wants_witnesses) && self.viewer.queue.is_empty() {
            // Those that answer, from a place that differs between nodes.
            let skip = usize::try_from((self.random)() % 997).unwrap_or(0) % self.peers.len().max(1);
            let well = |key: &&IpNet| {
                self.peers.get(key).is_some_and(|peer| peer.target.primary && peer.shown.harm() < Harm::All && peer.shown != State::Unknown)
            };
            let found = self.peers.keys().cycle().skip(skip).take(self.peers.len()).filter(well).take(WITNESSES).copied().collect();
            self.viewer.queue = found;
        }
        if self.viewer.looks(now.at) && self.viewer.queue.is_empty() && self.viewer.filled_at.is_none_or(|at| now.at >= at + EVERY) {
            self.viewer.filled_at = Some(now.at);
            self.viewer.queue = self.peers.iter().filter(|(_, peer)| peer.target.primary).map(|(key, _)| *key).collect();
        }
        self.viewer.rows.retain(|_, row| now.at < row.until());
        while let Some(key) = self.viewer.queue.front().copied() {
            if !self.viewer.budget.take(now.at, 1) {
                return;
            }
            self.viewer.queue.pop_front();
            self.ask(now, key, What::Row, 0);
            let row = self.viewer.rows.entry(key).or_default();
            row.asked_at = now.at;
            row.attempts = row.attempts.wrapping_add(1);
        }
    }

    pub(super) fn heard_row(&mut self, now: Now, waiting: Waiting, header: &Header, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(&waiting.key) else { return };
        if peer.target.id.is_some() && header.from != peer.who {
            peer.answered_by = Some(header.from);
            return;
        }
        if rows::read(bytes).is_none() {
            self.traffic.junk += 1;
            return;
        }
        self.traffic.answered += 1;
        let row = self.viewer.rows.entry(waiting.key).or_default();
        row.said_at = Some(now.at);
        row.bytes = bytes.into();
        // The way that worked is kept.
        row.attempts = row.attempts.wrapping_sub(1);
    }
}
