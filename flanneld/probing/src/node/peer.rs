//! The state that this node keeps for one peer. It is small, because a cluster can have ten thousand peers.

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

/// Probes to one peer whose replies the node evaluates together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub number: u64,
    pub evidence: Evidence,
    /// Whether the round contains every probe that a verdict needs.
    pub whole: bool,
    pub began: Duration,
    pub closes: Duration,
    /// Number of outstanding replies.
    pub open: u8,
    /// Whether the peer's host refused a probe.
    pub refused: bool,
    /// Whether the peer replied to a ping of the round.
    pub ponged: bool,
    /// Whether a common fault of all peers began or ended during the round and therefore explains the losses.
    pub explained: bool,
}

/// A peer's report on the probes that it received from this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerClaim {
    pub at: Moment,
    pub overlay_ms: Option<u32>,
    pub underlay_ms: Option<u32>,
}

#[derive(Debug)]
pub(super) struct PeerState {
    pub target: Target,
    /// The number of the peer on the wire and in pseudo-random orders of peers; 0 if unknown.
    pub who: u64,
    /// The number that identifies the peer's subnet in reports.
    pub short: u32,
    pub standing: DebouncedVerdict,
    /// Includes the states `slow` and `loses-some`.
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
    /// A refusal proves the same reachability as a reply to a ping.
    pub refuses: bool,
    /// Whether the peer replied during a common fault of its family.
    pub exempt: bool,
    /// Whether a firewall that accepts only the tunnel drops probes over the underlay, while the overlay works.
    pub tunnel_only: bool,
    /// The peer's overlay address, as the peer itself reports it.
    pub answers_at: Option<IpAddr>,
    pub tokens: Tokens,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    pub count: u32,
    /// Number of the rotation of long probes in which the peer got its last long probe.
    pub full_done: u32,
    /// Number of rounds of probes since the last scheduled probes of the peer.
    pub rounds: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub asked: Option<Moment>,
    /// Of the peer's last reply of any kind.
    pub answered: PathTimes,
    /// Of the peer's last probe that reached this node.
    pub received: PathTimes,
    /// Time of the peer's last probe that caused a round on this node.
    pub reconsidered: Option<Moment>,
}

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

    /// True if `target` is the same node at the same address, so that the known probe results still apply.
    pub(super) fn is_same_node(&self, target: &Target) -> bool {
        self.target.address == target.address && self.target.id == target.id
    }

    /// True if the peer probably replies unless a common fault exists. Packets pass by the peer's own verdict, or the
    /// peer has none and its probes arrived.
    pub(super) fn may_refute(&self) -> bool {
        let PathTimes { overlay, underlay } = self.times.received;
        match self.standing.present.state {
            State::Unknown => overlay.or(underlay).is_some(),
            state => state.passes(),
        }
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
