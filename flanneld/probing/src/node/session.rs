//! Asking one peer at once: what is asked and what is answered.

use super::message::Asked;
use crate::view::Tally;
use ipnet::IpNet;
use std::time::Duration;

/// Asking one peer.
#[derive(Debug)]
pub struct Session {
    pub key: IpNet,
    pub next: Duration,
    pub done: u8,
    pub asked: [u8; 4],
    pub answered: [Vec<u32>; 4],
}

impl Session {
    pub fn new(key: IpNet, next: Duration) -> Self {
        Self { key, next, done: 0, asked: [0; 4], answered: Default::default() }
    }

    pub fn delay(&mut self, by: Duration) {
        self.next = self.next.saturating_add(by);
    }

    pub fn answered(&mut self, kind: Asked, rtt: Duration) {
        if let Some(list) = self.answered.get_mut(kind.place()) {
            list.push(u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX));
        }
    }

    pub fn tally(&self, kind: Asked) -> Tally {
        let mut rtts = self.answered.get(kind.place()).cloned().unwrap_or_default();
        rtts.sort_unstable();
        let asked = self.asked.get(kind.place()).copied().unwrap_or(0);
        Tally { asked, answered: u8::try_from(rtts.len()).unwrap_or(u8::MAX), rtt_us: rtts.get(rtts.len() / 2).copied() }
    }
}
