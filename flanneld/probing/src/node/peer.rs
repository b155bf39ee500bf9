//! What is remembered of one peer: little, since there may be ten thousand.

use super::history::History;
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
    /// Whether a fault that all peers have in common was found or ended meanwhile: it explains what was lost.
    pub explained: bool,
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
    /// Whether it has answered in spite of a fault that its peers have in common.
    pub exempt: bool,
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
            exempt: false,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_state_fits_in_480_bytes() {
        assert!(size_of::<PeerState>() <= 480, "{}", size_of::<PeerState>());
    }
}
