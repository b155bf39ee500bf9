//! Turns, and the rounds that verify what a turn shows.

use super::machine::Node;
use super::message::{ANSWER_TIMEOUT, Notice, Now, ROUND_COST, What};
use super::mtu_search::MtuSearch;
use super::peer::{History, PathTimes, PeerState, Round};
use crate::schedule::{MIN_CYCLE, turn_paths};
use crate::verdict::{Evidence, MIN_LOSSES, ProbeResult, expected, grade, judge};
use ipnet::IpNet;
use std::time::Duration;
use types::reachability::{Impact, State, Verdict};

/// The most rounds after a turn.
const MAX_ROUNDS: u8 = 5;
/// Peers that answer only ping are asked a question every so many turns,
const QUESTION_INTERVAL: u32 = 10;
/// and get a long ping every so many.
const LONG_PING_INTERVAL: u32 = 4;
/// While the MTU is too small, it is searched again every so many turns.
const MTU_SEARCH_INTERVAL: u32 = 8;
/// How often the median of all round trips is computed.
const MEDIAN_INTERVAL: Duration = Duration::from_secs(5);

impl Node {
    /// Starts the turns that are due.
    pub(super) fn turns(&mut self, now: Now) {
        loop {
            let peers = &self.peers;
            let Some(key) = self
                .pace
                .walk
                .turn(now.at, || peers.iter().map(|(key, peer)| (*key, peer.who)))
            else {
                return;
            };
            self.turn(now, key);
        }
    }

    /// One turn: a whole round where packets are lost, else as few questions as show that nothing has changed.
    fn turn(&mut self, now: Now, key: IpNet) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.turn.count = peer.turn.count.wrapping_add(1);
        peer.turn.rounds = 0;
        let (present, turn) = (peer.standing.present, peer.turn.count);
        let is_harmed = present.state == State::SmallMtu || present.state.impact() == Impact::All;
        if is_harmed && self.pace.retries.take(now.at, ROUND_COST) {
            self.begin(now, key);
            if present.state == State::SmallMtu && turn.is_multiple_of(MTU_SEARCH_INTERVAL) {
                self.mtu_search(now, key, present.ping_only);
            }
            return;
        }
        let whats = if present.ping_only {
            self.pings_of_turn(key)
        } else {
            self.questions_of_turn(now, key)
        };
        self.round(now, key, &whats, false);
    }

    /// What a peer is asked that answers only ping: now and then also a question, because it may have changed.
    fn pings_of_turn(&self, key: IpNet) -> Vec<What> {
        let has_overlay = self.overlay_of(&key).is_some();
        let (turn, refuses) = self
            .peers
            .get(&key)
            .map_or((0, false), |peer| (peer.turn.count, peer.refuses));
        let mut whats = vec![if has_overlay {
            What::Ping
        } else {
            What::UnderlayPing
        }];
        if has_overlay && turn.is_multiple_of(LONG_PING_INTERVAL) {
            whats.push(What::FullPing);
        }
        if refuses || turn.is_multiple_of(QUESTION_INTERVAL) {
            whats.push(if has_overlay {
                What::Small
            } else {
                What::Underlay
            });
        }
        whats
    }

    /// What a peer is asked that answers questions.
    fn questions_of_turn(&mut self, now: Now, key: IpNet) -> Vec<What> {
        let has_overlay = self.overlay_of(&key).is_some();
        let peers = self.peers.len();
        let Some(peer) = self.peers.get(&key) else {
            return Vec::new();
        };
        let is_unknown = peer.standing.present.state == State::Unknown;
        let paths = turn_paths(peer.who, peer.turn.count, peers);
        let mut whats = Vec::with_capacity(2);
        if has_overlay && (paths.overlay || is_unknown) {
            whats.push(self.long_or_short(now, key));
        }
        if paths.underlay || !has_overlay {
            whats.push(if self.local.clear {
                What::Underlay
            } else {
                What::UnderlayPing
            });
        }
        whats
    }

    /// Returns a long question where it is this peer's turn to get one.
    fn long_or_short(&mut self, now: Now, key: IpNet) -> What {
        let mut done = self.peers.get(&key).map_or(0, |peer| peer.turn.full_done);
        let others_wait = |round: u32| {
            self.peers.iter().any(|(other, peer)| {
                *other != key && peer.turn.full_done != round && peer.is_asked_long()
            })
        };
        let is_long = self.pace.full.turn(now.at, &mut done, others_wait);
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.turn.full_done = done;
        }
        if is_long { What::Full } else { What::Small }
    }

    /// Asks again where something was lost, as far as the budget goes.
    pub(super) fn repeat(&mut self, now: Now) {
        while self.deadlines.again.is_due(now.at) {
            if !self.pace.retries.take(now.at, ROUND_COST) {
                return;
            }
            if let Some(key) = self.deadlines.again.pop_due(now.at) {
                self.begin(now, key);
            }
        }
    }

    /// Asks all that a verdict needs.
    fn begin(&mut self, now: Now, key: IpNet) {
        let mut whats = vec![What::Small, What::Full, What::Ping];
        if self.local.device {
            whats.push(What::BridgePing);
        }
        if self
            .peers
            .get(&key)
            .is_some_and(|peer| peer.standing.present.ping_only)
        {
            whats.push(What::FullPing);
        }
        whats.extend([What::Underlay, What::UnderlayPing]);
        self.round(now, key, &whats, true);
    }

    fn round(&mut self, now: Now, key: IpNet, whats: &[What], whole: bool) {
        if self.peers.get(&key).is_none_or(|peer| peer.round.is_some()) {
            return;
        }
        self.pace.rounds += 1;
        let number = self.pace.rounds;
        let mut evidence = Evidence::default();
        let mut open = 0;
        for what in whats {
            if self.ask(now, key, *what, number) {
                open += 1;
                if let Some(result) = part(&mut evidence, *what) {
                    *result = ProbeResult::Lost;
                }
            }
        }
        if open == 0 {
            return;
        }
        let closes = now.at + ANSWER_TIMEOUT;
        self.deadlines.closes.insert(closes, key);
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.turn.rounds = peer.turn.rounds.saturating_add(1);
            peer.round = Some(Box::new(Round {
                number,
                evidence,
                whole,
                began: now.at,
                closes,
                open,
                refused: false,
                ponged: false,
            }));
        }
    }

    /// Judges the rounds whose time is over.
    pub(super) fn close_rounds(&mut self, now: Now) {
        while let Some(key) = self.deadlines.closes.pop_due(now.at) {
            self.close_round(now, key);
        }
    }

    fn close_round(&mut self, now: Now, key: IpNet) {
        let typical = self.typical(now.at);
        let mtu = self.local.mtu(key.into());
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let Some(round) = peer.round.take() else {
            return;
        };
        let Outcome {
            verdict,
            changed,
            again,
        } = peer.close(&round, mtu, now.at);
        if again && peer.turn.rounds < MAX_ROUNDS {
            let next = if round.whole {
                now.at.max(round.began + ANSWER_TIMEOUT)
            } else {
                now.at
            };
            self.deadlines.again.insert(next, key);
        }
        self.grade(now, key, typical);
        if changed && verdict.state == State::SmallMtu {
            if let Some(peer) = self.peers.get_mut(&key) {
                peer.carries = None;
            }
            self.mtu_search(now, key, verdict.ping_only);
        }
        if changed && verdict.state.impact() == Impact::All {
            self.viewer.trouble(now.at);
        }
    }

    /// Grades the verdict, and notes a change for the log.
    fn grade(&mut self, now: Now, key: IpNet, typical: Option<u32>) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let is = match peer.standing.present {
            Verdict {
                state: State::Well, ..
            } => grade(peer.history.lost(), peer.history.fastest_us(), typical),
            Verdict { state, .. } => state,
        };
        if is != State::SmallMtu {
            peer.mtu_search = None;
        }
        let was = std::mem::replace(&mut peer.shown, is);
        if was != is {
            peer.since = now.at.into();
            if is.impact() == Impact::All {
                peer.carries = None;
            }
            self.notices.push(Notice {
                target: peer.target.clone(),
                was,
                is,
            });
        }
    }

    /// Asks a peer at once whose question arrived although its state does not let one expect that.
    pub(super) fn reconsider(&mut self, now: Now, key: IpNet) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let present = peer.standing.present;
        let lately = peer
            .times
            .reconsidered
            .is_some_and(|at| now.at.saturating_sub(at.into()) < MIN_CYCLE);
        let waits = peer.round.is_some() || self.deadlines.again.contains(&key);
        if !lately && !waits && (present.ping_only || present.state.impact() == Impact::All) {
            peer.times.reconsidered = Some(now.at.into());
            peer.turn.rounds = 0;
            self.deadlines.again.insert(now.at, key);
        }
    }

    /// Returns the median of all peers' round trips in microseconds, at most some seconds old.
    fn typical(&mut self, now: Duration) -> Option<u32> {
        let (at, known) = self.pace.typical_us;
        if known.is_some() && now.saturating_sub(at) < MEDIAN_INTERVAL {
            return known;
        }
        let median = self.median_us();
        self.pace.typical_us = (now, median);
        median
    }

    pub(super) fn median_us(&self) -> Option<u32> {
        let mut all: Vec<u32> = self
            .peers
            .values()
            .filter_map(|peer| peer.history.rtt_us())
            .collect();
        let middle = all.len().checked_sub(1)? / 2;
        Some(*all.select_nth_unstable(middle).1)
    }

    /// Begins to search how large a packet the path carries, unless a search is in progress.
    fn mtu_search(&mut self, now: Now, key: IpNet, by_ping: bool) {
        let mtu = self.local.mtu(key.into());
        if let Some(peer) = self
            .peers
            .get_mut(&key)
            .filter(|peer| peer.mtu_search.is_none())
        {
            peer.mtu_search = Some(Box::new(MtuSearch::new(key.into(), mtu, by_ping)));
            self.deadlines.mtu_searches.insert(now.at, key);
        }
    }
}

/// What a round came to.
struct Outcome {
    verdict: Verdict,
    /// Whether the verdict in force has changed.
    changed: bool,
    /// Whether another round is needed to be sure.
    again: bool,
}

impl PeerState {
    /// Takes the results of a round over the overlay of this MTU.
    fn close(&mut self, round: &Round, mtu: u16, now: Duration) -> Outcome {
        let mut evidence = round.evidence;
        // Kernels limit how often they refuse (icmp_ratelimit): a long question that was not refused proves nothing.
        if round.refused && !round.ponged && evidence.full_ping == ProbeResult::Lost {
            evidence.full_ping = ProbeResult::NotAsked;
        }
        let present = self.standing.present;
        let verdict = judge(&evidence);
        self.sample(&evidence, verdict, now);
        if [evidence.full, evidence.full_ping].contains(&ProbeResult::Answered) && !evidence.other {
            self.carries = Some(mtu);
        }
        if evidence.underlay == ProbeResult::Answered
            || round.whole && verdict != Verdict::of(State::Well)
        {
            self.tunnel_only = false;
        } else if round.whole && evidence.underlay == ProbeResult::Lost {
            self.tunnel_only = true;
        }
        let looked_into =
            round.whole || present.state == State::Unknown && verdict.state == State::Well;
        let (changed, again) = if looked_into {
            let is_lossy = self.history.lost() >= MIN_LOSSES;
            let changed = self.standing.take(verdict, is_lossy);
            (changed, self.standing.is_undecided())
        } else {
            (false, !expected(present, &self.excused(evidence)))
        };
        if changed && verdict.ping_only != present.ping_only || round.refused {
            // Packets pass; one kind of question is filtered, or its daemon is silent.
            self.history.forgive_losses();
        } else if !again {
            self.history.count_losses();
        }
        if changed {
            if present.state.impact() == Impact::All || verdict.state.impact() == Impact::All {
                self.history = History::default();
            }
            if verdict.state != State::WrongNode {
                self.answered_by = None;
            }
            if present.state == State::Unknown && verdict.state == State::CutOff {
                // A lease is known here before the kernel has its route: what came meanwhile came by the peer's former address.
                self.times.answered = PathTimes::default();
                self.times.received = PathTimes::default();
            }
        }
        Outcome {
            verdict,
            changed,
            again,
        }
    }

    /// The evidence without a loss on the underlay that a firewall explains.
    fn excused(&self, evidence: Evidence) -> Evidence {
        if self.tunnel_only && evidence.underlay == ProbeResult::Lost {
            Evidence {
                underlay: ProbeResult::NotAsked,
                ..evidence
            }
        } else {
            evidence
        }
    }

    /// Whether it has its turn in long questions.
    fn is_asked_long(&self) -> bool {
        let present = self.standing.present;
        !present.ping_only && present.state.impact() <= Impact::None
    }

    /// Notes what was lost over the overlay. Long questions are not lost by chance where the MTU is too small.
    fn sample(&mut self, evidence: &Evidence, verdict: Verdict, now: Duration) {
        let small =
            verdict.state == State::SmallMtu || self.standing.present.state == State::SmallMtu;
        let by_ping = self.standing.present.ping_only;
        let parts = if by_ping {
            [evidence.ping, ProbeResult::NotAsked]
        } else {
            [
                evidence.small,
                if small {
                    ProbeResult::NotAsked
                } else {
                    evidence.full
                },
            ]
        };
        for result in parts {
            match result {
                ProbeResult::NotAsked => {}
                ProbeResult::Answered => self.history.answered(),
                ProbeResult::Lost => self.history.unanswered(now),
            }
        }
    }
}

/// The part of the evidence that a question is about.
pub(super) fn part(evidence: &mut Evidence, what: What) -> Option<&mut ProbeResult> {
    match what {
        What::Full => Some(&mut evidence.full),
        What::Small => Some(&mut evidence.small),
        What::Ping | What::BridgePing => Some(&mut evidence.ping),
        What::FullPing => Some(&mut evidence.full_ping),
        What::Underlay => Some(&mut evidence.underlay),
        What::UnderlayPing => Some(&mut evidence.underlay_ping),
        What::Size(_) | What::SizePing(_) | What::Session(..) | What::Row => None,
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Answered, Lost, NotAsked};
    use super::*;
    use crate::target::{Path, Target};

    /// A round in which every question has the same fate.
    fn round(fate: ProbeResult) -> Round {
        let evidence = Evidence {
            full: fate,
            small: fate,
            ping: fate,
            full_ping: NotAsked,
            underlay: fate,
            underlay_ping: fate,
            hears_us_ms: None,
            other: false,
        };
        Round {
            number: 1,
            evidence,
            whole: true,
            began: Duration::ZERO,
            closes: Duration::ZERO,
            open: 0,
            refused: false,
            ponged: false,
        }
    }

    #[test]
    fn packets_of_before_the_first_verdict_prove_nothing_of_a_peer_that_is_cut_off() {
        let now = Duration::from_secs(100);
        let target = Target {
            id: None,
            name: None,
            subnet: "10.5.1.0/24".parse().unwrap(),
            address: "10.0.2.16".parse().unwrap(),
            primary: true,
        };
        for (first, remembered) in [(None, false), (Some(Answered), true)] {
            let mut peer = PeerState::new(target.clone(), now, 1);
            if let Some(fate) = first {
                peer.close(&round(fate), 1450, now);
            }
            peer.times.answered.note(Path::Overlay, now);
            peer.times.received.note(Path::Underlay, now);
            for _ in 0..4 {
                peer.close(&round(Lost), 1450, now);
            }
            assert_eq!(peer.standing.present.state, State::CutOff);
            assert_eq!(peer.times.answered.overlay.is_some(), remembered);
            assert_eq!(peer.times.received.underlay.is_some(), remembered);
        }
    }
}
