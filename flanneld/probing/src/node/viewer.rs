//! Cached reports of other nodes, and the client that views these reports.

use crate::limits::Bucket;
use crate::rows::{self, Body};
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Minimum time between two report requests to a node.
const ROW_INTERVAL: Duration = Duration::from_secs(5);
/// Average time between two report requests for an open status page. It limits the cost of the page in a large
/// cluster.
const PAGE_REQUEST_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time between two report requests to a node for a status page. It is less than [`ROW_LIFETIME`], so that a
/// new report arrives before the old one expires.
const MAX_PAGE_INTERVAL: Duration = Duration::from_secs(180);
/// Time for which the cache keeps a report.
const ROW_LIFETIME: Duration = Duration::from_secs(300);
/// Minimum time between two rounds of report requests about a failing peer, while no client views reports.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(30);

/// The cached report of another node.
#[derive(Debug, Default)]
pub(super) struct CachedRow {
    pub(crate) asked_at: Duration,
    pub(crate) answered_at: Option<Duration>,
    /// Encoded, which takes little memory, because the cache may contain reports of ten thousand nodes.
    pub bytes: Box<[u8]>,
    pub attempts: u8,
}

impl CachedRow {
    /// The time at which the report expires.
    pub(super) fn until(&self) -> Duration {
        self.answered_at.unwrap_or(self.asked_at) + ROW_LIFETIME
    }

    pub(super) fn body(&self) -> Option<Body> {
        self.answered_at?;
        rows::read(&self.bytes)
    }
}

/// The client that views the reports of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Shows the reports once.
    Command,
    /// May stay open for hours.
    Page,
}

impl Client {
    /// The minimum time between two report requests to the same node, for a cluster of `nodes` nodes.
    fn row_interval(self, nodes: usize) -> Duration {
        match self {
            Self::Command => ROW_INTERVAL,
            Self::Page => PAGE_REQUEST_INTERVAL
                .saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX))
                .clamp(ROW_INTERVAL, MAX_PAGE_INTERVAL),
        }
    }
}

#[derive(Debug)]
pub(super) struct Viewer {
    pub(crate) budget: Bucket,
    pub until: Option<Duration>,
    client: Client,
    pub queue: VecDeque<IpNet>,
    pub(crate) filled_at: Option<Duration>,
    pub(crate) troubled_at: Option<Duration>,
    pub(crate) wants_witnesses: bool,
    /// Subnet number of the failing peer that report requests name, if any.
    pub about: Option<u32>,
    pub rows: BTreeMap<IpNet, CachedRow>,
}

impl Viewer {
    pub(super) fn new(budget: Bucket) -> Self {
        Self {
            budget,
            until: None,
            client: Client::Command,
            queue: VecDeque::new(),
            filled_at: None,
            troubled_at: None,
            wants_witnesses: false,
            about: None,
            rows: BTreeMap::new(),
        }
    }

    /// Makes this node request reports for a client until the time `until`.
    pub(super) fn look(&mut self, client: Client, until: Duration) {
        self.client = client;
        self.until = Some(until);
    }

    /// The time at which this node may request all reports again; `None` before the first request.
    pub(super) fn refill_at(&self) -> Option<Duration> {
        // With both families a node is two peers, but has one row.
        self.filled_at.map(|at| at + self.client.row_interval(self.rows.len()))
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.rows.retain(|key, _| stays(key));
        self.queue.retain(|key| stays(key));
    }

    /// Requests the reports of some other nodes. The requests name the failing peer with the subnet number `about`,
    /// if any.
    pub(super) fn trouble(&mut self, now: Duration, about: Option<u32>) {
        if self.troubled_at.is_none_or(|at| now.saturating_sub(at) >= TROUBLE_INTERVAL) {
            self.troubled_at = Some(now);
            self.wants_witnesses = true;
            self.about = about;
        }
    }

    /// Whether the next report request to a node uses the underlay.
    pub(super) fn goes_over_underlay(&self, key: &IpNet) -> bool {
        self.rows.get(key).is_none_or(|row| row.attempts.is_multiple_of(2))
    }

    pub(super) fn looks(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// When this node next has to request or drop reports.
    pub(super) fn next(&mut self, now: Duration) -> Option<Duration> {
        if self.wants_witnesses {
            return Some(now);
        }
        if !self.queue.is_empty() {
            return Some(self.budget.ready_at(now, 1).max(now + Duration::from_millis(1)));
        }
        let old = self.rows.values().map(CachedRow::until).min();
        let refill = self.refill_at().unwrap_or(now);
        let refill = self.until.filter(|until| now < *until && refill < *until).map(|_| refill);
        refill.into_iter().chain(old).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_a_page_grows_with_the_cluster_up_to_less_than_the_lifetime() {
        for (peers, seconds) in [(0, 5), (2, 5), (50, 5), (200, 20), (1000, 100), (20_000, 180)] {
            let interval = Client::Page.row_interval(peers);
            assert_eq!(interval.as_secs(), seconds, "{peers} peers");
            assert!(interval < ROW_LIFETIME);
            assert_eq!(Client::Command.row_interval(peers), ROW_INTERVAL);
        }
    }

    #[test]
    fn command_requests_rows_at_once_while_a_page_is_open() {
        let mut viewer = Viewer::new(Bucket::new(crate::limits::ROW_QUESTIONS, Duration::ZERO));
        let at = Duration::from_secs;
        for node in 0..1000_u32 {
            let subnet = IpNet::V4(ipnet::Ipv4Net::new_assert((node << 8).into(), 24));
            viewer.rows.insert(subnet, CachedRow::default());
        }
        viewer.look(Client::Page, at(10));
        assert_eq!(viewer.refill_at(), None);
        viewer.filled_at = Some(at(0));
        assert_eq!(viewer.refill_at(), Some(at(100)));
        viewer.look(Client::Command, at(20));
        assert_eq!(viewer.refill_at(), Some(at(5)));
    }
}
