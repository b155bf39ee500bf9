//! What is remembered of one peer: little, since there may be ten thousand.

use super::message::ANSWER_TIMEOUT;
use super::moment::Moment;
use super::mtu_search::MtuSearch;
use super::tokens::Tokens;
use crate::target::{Path, Target};
use crate::verdict::{DebouncedVerdict, Evidence};
use crate::who::short;
use std::net::IpAddr;
use std::time::Duration;
use types::reachability::State;

/// Questions whose answers are judged together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub number: u64,
    pub evidence: Evidence,
    /// Whether everything was asked that a verdict needs.
    pub whole: bool,
    pub began: Duration,
    pub closes: Duration,
    /// Answers that have not come.
    pub open: u8,
    /// Whether a question was refused.
    pub refused: bool,
    /// Whether ping itself was answered.
    pub ponged: bool,
}

/// What a peer reported of us.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerClaim {
    pub at: Moment,
    pub overlay_ms: Option<u32>,
    pub underlay_ms: Option<u32>,
}

/// What is remembered of one peer.
#[derive(Debug)]
pub(super) struct PeerState {
    pub target: Target,
    /// Its number, for orders: 0 if it cannot be computed.
    pub who: u64,
    /// The number of its subnet in rows.
    pub short: u32,
    pub standing: DebouncedVerdict,
    /// The verdict with its grade.
    pub shown: State,
    pub since: Moment,
    pub turn: Turn,
    pub round: Option<Box<Round>>,
    pub history: History,
    pub carries: Option<u16>,
    pub mtu_search: Option<Box<MtuSearch>>,
    pub times: Times,
    pub claim: Option<PeerClaim>,
    pub clock_offset_ms: Option<i64>,
    pub answered_by: Option<u64>,
    /// Whether its host refuses questions, which proves as much as an answer to a ping.
    pub refuses: bool,
    /// Whether questions over the underlay are lost while all is well over the overlay: a firewall lets in only the tunnel.
    pub tunnel_only: bool,
    /// Its address in the overlay network, as it reports itself.
    pub answers_at: Option<IpAddr>,
    pub tokens: Tokens,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    pub count: u32,
    /// The round of long questions in which it had its last one.
    pub full_done: u32,
    /// Rounds since the last turn began.
    pub rounds: u8,
}

/// When packets were exchanged with a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub asked: Option<Moment>,
    /// Its last answer of any kind.
    pub answered: PathTimes,
    /// Its last question that reached this node.
    pub received: PathTimes,
    /// The last question of its that caused a round.
    pub reconsidered: Option<Moment>,
}

/// The last time on each path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathTimes {
    pub overlay: Option<Moment>,
    pub underlay: Option<Moment>,
}

impl PathTimes {
    pub(super) fn note(&mut self, path: Path, at: Duration) {
        let last = match path {
            Path::Overlay => &mut self.overlay,
            Path::Underlay => &mut self.underlay,
        };
        *last = Some(at.into());
    }
}

impl PeerState {
    pub(super) fn new(target: Target, now: Duration, random: u64) -> Self {
        Self {
            who: target.who().unwrap_or(0),
            short: short(&target.subnet),
            target,
            standing: DebouncedVerdict::default(),
            shown: State::Unknown,
            since: now.into(),
            turn: Turn::default(),
            round: None,
            history: History::default(),
            carries: None,
            mtu_search: None,
            times: Times::default(),
            claim: None,
            clock_offset_ms: None,
            answered_by: None,
            refuses: false,
            tunnel_only: false,
            answers_at: None,
            tokens: Tokens::new(random),
        }
    }

    /// Whether what is known still holds: the same node, at the same address.
    pub(super) fn is_same_node(&self, target: &Target) -> bool {
        self.target.address == target.address && self.target.id == target.id
    }
}

/// Round trips that it takes to call a peer slow.
const MIN_ROUND_TRIPS: u8 = 4;

/// The last questions through the overlay network.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    /// A bit for each question, the last one lowest: it got no answer.
    lost: u16,
    asked: u8,
    last_loss: Option<Moment>,
    /// Losses of which it is not decided yet whether the path lost them, or the daemon was silent.
    pending: u8,
    rtts: [u32; 8],
    known: u8,
}

impl History {
    /// Notes a question that was answered.
    pub(super) fn answered(&mut self) {
        self.push(false);
    }

    /// Notes a question that was not answered. It counts as a loss once it is decided why.
    pub(super) fn unanswered(&mut self, now: Duration) {
        self.pending = self.pending.saturating_add(1);
        self.last_loss = Some(now.into());
    }

    /// Counts the pending losses: the path lost them.
    pub(super) fn count_losses(&mut self) {
        for _ in 0..std::mem::take(&mut self.pending) {
            self.push(true);
        }
    }

    /// Drops the pending losses: the path did not lose them.
    pub(super) fn forgive_losses(&mut self) {
        self.pending = 0;
    }

    fn push(&mut self, lost: bool) {
        self.lost = self.lost << 1 | u16::from(lost);
        self.asked = (self.asked + 1).min(16);
    }

    /// Takes back a loss whose answer came late.
    pub(super) fn came_late(&mut self) {
        if self.pending > 0 {
            self.pending -= 1;
        } else {
            self.lost &= self.lost.wrapping_sub(1);
        }
    }

    /// Drops the losses of before the peer began to listen: the path did not lose them.
    pub(super) fn began(&mut self, began: Duration) {
        if self
            .last_loss
            .is_some_and(|loss| loss <= Moment::from(began + ANSWER_TIMEOUT))
        {
            self.lost = 0;
            self.pending = 0;
        }
    }

    pub(super) fn round_trip(&mut self, rtt: Duration) {
        let us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
        if let Some(place) = self.rtts.get_mut(usize::from(self.known % 8)) {
            *place = us;
        }
        // From 8 to 15 all places are taken.
        self.known = if self.known == 15 { 8 } else { self.known + 1 };
    }

    pub(super) fn lost(&self) -> u32 {
        self.lost.count_ones()
    }

    pub(super) fn asked(&self) -> u8 {
        self.asked
    }

    /// The median of the last round trips.
    pub(super) fn rtt_us(&self) -> Option<u32> {
        let mut rtts = self.rtts;
        let known = rtts.get_mut(..usize::from(self.known.min(8)))?;
        known.sort_unstable();
        known.get(known.len() / 2).copied()
    }

    /// The fastest of the last round trips, once there are enough of them to call a peer slow. On a busy machine any answer may be late, and
    /// so may the median of few. A slow path never yields a fast one.
    pub(super) fn fastest_us(&self) -> Option<u32> {
        let known = self.rtts.get(..usize::from(self.known.min(8)))?;
        if self.known < MIN_ROUND_TRIPS {
            None
        } else {
            known.iter().min().copied()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_counts_losses_of_the_last_sixteen() {
        let now = Duration::from_secs(100);
        let mut history = History::default();
        for number in 0..20 {
            if number % 5 == 0 {
                history.unanswered(now);
                history.count_losses();
            } else {
                history.answered();
            }
        }
        assert_eq!((history.lost(), history.asked()), (3, 16));
        history.came_late();
        assert_eq!(history.lost(), 2);
        history.began(now - Duration::from_secs(50));
        assert_eq!(history.lost(), 2);
        history.began(now + Duration::from_secs(1));
        assert_eq!(history.lost(), 0);
        history.came_late();
        assert_eq!(history.lost(), 0);
        history.unanswered(now);
        history.forgive_losses();
        history.unanswered(now);
        history.came_late();
        history.count_losses();
        assert_eq!(history.lost(), 0);
    }

    #[test]
    fn peer_state_fits_in_480_bytes() {
        assert!(size_of::<PeerState>() <= 480, "{}", size_of::<PeerState>());
    }

    #[test]
    fn median_is_of_the_last_eight_round_trips() {
        let mut history = History::default();
        assert_eq!(history.rtt_us(), None);
        for us in [9_000, 1, 2] {
            history.round_trip(Duration::from_micros(us));
        }
        assert_eq!((history.rtt_us(), history.fastest_us()), (Some(2), None));
        for us in 100..140 {
            history.round_trip(Duration::from_micros(us));
        }
        assert_eq!(
            (history.rtt_us(), history.fastest_us()),
            (Some(136), Some(132))
        );
    }
}
