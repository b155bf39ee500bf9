//! Requests for the reports of other nodes.

use super::machine::Node;
use super::message::{Now, Waiting, What};
use super::viewer::Client;
use crate::rows::{self, Wire};
use crate::wire::Header;
use ipnet::IpNet;
use std::time::Duration;
use types::reachability::{Impact, State};

/// Time after a client's request during which this node requests other nodes' reports.
const VIEWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of other nodes to which this node sends a report request when a peer fails.
const MAX_WITNESSES: usize = 16;
/// Maximum number of peers in the cached reports of other nodes: enough for all peers in a cluster of about 140
/// nodes. Reports in larger clusters contain only the peers with the worst states.
const MAX_CELLS: usize = 20_200;

impl Node {
    /// Requests them for the next ten seconds.
    pub fn request_rows(&mut self, client: Client, now: Now) {
        self.viewer.look(client, now.at + VIEWER_TIMEOUT);
    }

    pub(super) fn ask_rows(&mut self, now: Now) {
        if std::mem::take(&mut self.viewer.wants_witnesses) && self.viewer.queue.is_empty() {
            // Selects nodes that reply, from a place that differs between nodes.
            let skip =
                usize::try_from((self.random)() % 997).unwrap_or(0) % self.peers.len().max(1);
            let well = |key: &&IpNet| {
                self.peers.get(key).is_some_and(|peer| {
                    peer.target.primary
                        && peer.shown.impact() < Impact::All
                        && peer.shown != State::Unknown
                })
            };
            let found = self
                .peers
                .keys()
                .cycle()
                .skip(skip)
                .take(self.peers.len())
                .filter(well)
                .take(MAX_WITNESSES)
                .copied()
                .collect();
            self.viewer.queue = found;
        }
        if self.viewer.looks(now.at)
            && self.viewer.queue.is_empty()
            && self.viewer.refill_at().is_none_or(|refill| now.at >= refill)
        {
            self.viewer.filled_at = Some(now.at);
            self.viewer.about = None;
            self.viewer.queue = self
                .peers
                .iter()
                .filter(|(_, peer)| peer.target.primary)
                .map(|(key, _)| *key)
                .collect();
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

    pub(super) fn take_row(&mut self, now: Now, waiting: Waiting, header: &Header, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(&waiting.key) else {
            return;
        };
        if peer.target.id.is_some() && header.from != peer.who {
            self.traffic.junk += 1;
            return;
        }
        let Some(mut body) = rows::read(bytes) else {
            self.traffic.junk += 1;
            return;
        };
        self.traffic.answered += 1;
        let rows = if self.viewer.looks(now.at) { self.peers.len() } else { MAX_WITNESSES };
        let most = (MAX_CELLS / rows.max(1)).max(1);
        if body.cells.len() > most {
            body.cells.sort_by_cached_key(Wire::rank);
            body.cells.truncate(most);
        }
        let row = self.viewer.rows.entry(waiting.key).or_default();
        row.answered_at = Some(now.at);
        row.bytes = rows::write(&body).into();
        // The next request uses the path that worked.
        row.attempts = row.attempts.wrapping_sub(1);
    }
}
