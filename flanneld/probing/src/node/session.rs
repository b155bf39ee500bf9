//! An on-demand session: the probes to one peer and the replies to these probes.

use super::message::Asked;
use crate::view::Tally;
use ipnet::IpNet;
use std::time::Duration;

/// Numbers of sent and refused probes of one kind, and the round trips of the replies.
#[derive(Clone, Debug, Default)]
struct Count {
    asked: u8,
    refused: u8,
    rtts: Vec<u32>,
}

/// Series of probes that a caller requests for one peer.
#[derive(Debug)]
pub(super) struct Session {
    pub key: IpNet,
    pub next: Duration,
    pub done: u8,
    /// The number of another node that replied at the peer's address, if any.
    pub other: Option<u64>,
    counts: [Count; Asked::ALL.len()],
}

impl Session {
    pub(super) fn new(key: IpNet, next: Duration) -> Self {
        Self { key, next, done: 0, other: None, counts: Default::default() }
    }

    pub(super) fn delay(&mut self, by: Duration) {
        self.next = self.next.saturating_add(by);
    }

    fn count(&mut self, kind: Asked, change: impl FnOnce(&mut Count)) {
        if let Some(count) = self.counts.get_mut(kind.place()) {
            change(count);
        }
    }

    pub(super) fn asked(&mut self, kind: Asked) {
        self.count(kind, |count| count.asked += 1);
    }

    pub(super) fn answered(&mut self, kind: Asked, rtt: Duration) {
        self.count(kind, |count| {
            count.rtts.push(u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX));
        });
    }

    pub(super) fn refused(&mut self, kind: Asked) {
        self.count(kind, |count| count.refused += 1);
    }

    /// True if every sent probe got a reply or a refusal.
    pub(super) fn is_complete(&self) -> bool {
        self.counts
            .iter()
            .all(|count| usize::from(count.asked) <= count.rtts.len() + usize::from(count.refused))
    }

    pub(super) fn tally(&self, kind: Asked) -> Tally {
        let Some(Count { asked, refused, mut rtts }) = self.counts.get(kind.place()).cloned()
        else {
            return Tally::default();
        };
        rtts.sort_unstable();
        Tally {
            asked,
            answered: u8::try_from(rtts.len()).unwrap_or(u8::MAX),
            refused,
            rtt_us: rtts.get(rtts.len() / 2).copied(),
        }
    }
}
