//! Probes that await their replies.

use super::message::{ANSWER_TIMEOUT, LATE_TIMEOUT, Waiting};
use ipnet::IpNet;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Outstanding probes by nonce, with the expiry of each probe.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    by_nonce: HashMap<u64, Waiting>,
    expiries: VecDeque<(Duration, u64)>,
}

impl Outstanding {
    pub(super) fn insert(&mut self, nonce: u64, waiting: Waiting) {
        self.by_nonce.insert(nonce, waiting);
        self.expiries.push_back((waiting.at + LATE_TIMEOUT.max(ANSWER_TIMEOUT), nonce));
    }

    pub(super) fn get(&self, nonce: u64) -> Option<Waiting> {
        self.by_nonce.get(&nonce).copied()
    }

    pub(super) fn remove(&mut self, nonce: u64) {
        self.by_nonce.remove(&nonce);
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.by_nonce.retain(|_, waiting| stays(&waiting.key));
    }

    /// Drops the probes that still await a reply at their expiry, and returns their number.
    pub(super) fn expire(&mut self, now: Duration) -> u64 {
        let mut lost = 0;
        while let Some((_, nonce)) = self.expiries.pop_front_if(|(until, _)| *until <= now) {
            lost += u64::from(self.by_nonce.remove(&nonce).is_some());
        }
        lost
    }

    pub(super) fn delay(&mut self, by: Duration) {
        self.expiries.iter_mut().for_each(|(until, _)| *until += by);
    }
}
