//! Performs the steps of the MTU searches.

use super::machine::Node;
use super::message::{Now, What};
use crate::mtu::Search;
use ipnet::IpNet;
use std::time::Duration;

impl Node {
    pub(super) fn step_mtu_searches(&mut self, now: Now) {
        while let Some(key) = self.deadlines.mtu_searches.pop_due(now.at) {
            if let Some(next) = self.step(now, key) {
                self.deadlines.mtu_searches.insert(next, key);
            }
        }
    }

    /// The time of the search's next step; `None` if it is over.
    fn step(&mut self, now: Now, key: IpNet) -> Option<Duration> {
        let peer = self.peers.get_mut(&key)?;
        let rtt = peer.history.rtt_us().map(|us| Duration::from_micros(us.into()));
        let mtu_search = peer.mtu_search.as_mut()?;
        if let Some((size, until)) = mtu_search.asked {
            if now.at < until {
                return Some(until);
            }
            mtu_search.search.lost(size);
            mtu_search.asked = None;
        }
        if let Some(found) = mtu_search.search.found() {
            peer.carries = Some(found);
            peer.mtu_search = None;
            return None;
        }
        let size = mtu_search.search.next()?;
        let retries = &mut self.pace.retries;
        if !retries.take(now.at, 1) {
            return Some(retries.ready_at(now.at, 1).max(now.at + Duration::from_millis(1)));
        }
        let until = now.at + Search::wait(rtt);
        mtu_search.asked = Some((size, until));
        let what = if mtu_search.by_ping { What::SizePing(size) } else { What::Size(size) };
        // A probe that cannot be sent is recorded as lost when its time is over.
        self.ask(now, key, what, 0);
        Some(until)
    }
}
