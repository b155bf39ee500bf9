//! The searches for the size that the way to a peer carries, question by question.

use super::machine::Node;
use super::message::{Now, What};
use crate::mtu::Search;
use ipnet::IpNet;
use std::time::Duration;

impl Node {
    /// Takes the next step of the searches that are due.
    pub(super) fn step_hunts(&mut self, now: Now) {
        while let Some((at, key)) = self.hunts.first().copied().filter(|(at, _)| *at <= now.at) {
            self.hunts.remove(&(at, key));
            if let Some(next) = self.step(now, key) {
                self.hunts.insert((next, key));
            }
        }
    }

    /// One step; returns when the next one is due, unless the search is over.
    fn step(&mut self, now: Now, key: IpNet) -> Option<Duration> {
        let peer = self.peers.get_mut(&key)?;
        let rtt = peer.history.rtt_us().map(|us| Duration::from_micros(us.into()));
        let hunt = peer.hunt.as_mut()?;
        if let Some((size, until)) = hunt.asked {
            if now.at < until {
                return Some(until);
            }
            hunt.search.lost(size);
            hunt.asked = None;
        }
        if let Some(found) = hunt.search.found() {
            peer.carries = Some(found);
            peer.hunt = None;
            return None;
        }
        let size = hunt.search.next()?;
        if !self.retries.take(now.at, 1) {
            return Some(self.retries.ready_at(now.at, 1).max(now.at + Duration::from_millis(1)));
        }
        let until = now.at + Search::wait(rtt);
        hunt.asked = Some((size, until));
        let what = if hunt.by_ping { What::SizePing(size) } else { What::Size(size) };
        // Where it cannot be asked, that shows when the time is over.
        self.ask(now, key, what, 0);
        Some(until)
    }
}
