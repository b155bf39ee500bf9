//! Rounds of probes, which confirm or refute the results of scheduled probes, and the resulting verdicts.

use super::deadlines::Urgency;
use super::machine::Node;
use super::message::{ANSWER_TIMEOUT, Notice, Now, ROUND_COST, What};
use super::mtu_search::MtuSearch;
use super::outcome::Outcome;
use super::peer::Round;
use crate::schedule::{MIN_CYCLE, SAMPLE_CYCLE};
use crate::target::Path;
use crate::verdict::{Evidence, ProbeResult, grade};
use ipnet::IpNet;
use std::time::Duration;
use types::reachability::{Impact, State};

/// Maximum number of rounds between two scheduled probes of a peer.
const MAX_ROUNDS: u8 = 5;
/// Number of rounds with a peer after which each further round contains two long probes. The verdict that the MTU is
/// too small depends only on long probes. One in fifty of them may get lost by chance.
const DOUBLE_FROM: u8 = 2;
/// Time after which the node treats the round trip of a slow peer as the usual round trip.
const SLOW_FOR_LONG: Duration = Duration::from_secs(3600);

impl Node {
    /// Starts another round with each waiting peer, as far as the rate limit allows.
    pub(super) fn repeat(&mut self, now: Now) {
        while let Some((urgency, key)) = self.deadlines.again.due(now.at) {
            let round = self.peers.get(&key).and_then(|peer| peer.round.as_ref());
            if let Some(round) = round {
                // The open round has to end first.
                let closes = round.closes.max(now.at + Duration::from_micros(1));
                self.deadlines.again.remove(&key);
                self.deadlines.again.insert(urgency, closes, key);
                continue;
            }
            let pace = &mut self.pace;
            let is_paid = urgency == Urgency::Decisive && pace.searches.take(now.at, ROUND_COST)
                || pace.retries.take(now.at, ROUND_COST);
            if !is_paid {
                return;
            }
            self.deadlines.again.remove(&key);
            self.begin(now, key);
        }
    }

    /// Starts a whole round with each peer that has a confirmed fault, in turn, because its state may have changed.
    pub(super) fn look_at_broken(&mut self, now: Now) {
        while let Some((_, key)) = self.deadlines.broken.due(now.at) {
            let peer = self.peers.get_mut(&key);
            let broken = peer.filter(|peer| peer.standing.present.state.impact() == Impact::All);
            let Some(peer) = broken else {
                self.deadlines.broken.remove(&key);
                continue;
            };
            if !self.pace.broken.take(now.at, ROUND_COST) {
                return;
            }
            peer.turn.rounds = 0;
            self.deadlines.broken.remove(&key);
            self.look_again(now, key);
            self.begin(now, key);
        }
    }

    /// Schedules the next round with a peer that has a confirmed fault.
    fn look_again(&mut self, now: Now, key: IpNet) {
        let at = now.at + SAMPLE_CYCLE;
        self.deadlines.broken.insert(Urgency::Walked, at, key);
    }

    /// Starts a whole round: every probe that a verdict needs.
    pub(super) fn begin(&mut self, now: Now, key: IpNet) {
        let mut whats = vec![What::Small, What::Full, What::Ping];
        if self.local.device {
            whats.push(What::BridgePing);
        }
        let (by_ping, is_again) = self.peers.get(&key).map_or((false, false), |peer| {
            let is_again = peer.turn.rounds >= DOUBLE_FROM;
            (peer.standing.present.ping_only, is_again)
        });
        if by_ping {
            whats.push(What::FullPing);
        }
        if is_again {
            whats.push(if by_ping { What::FullPing } else { What::Full });
        }
        whats.extend([What::Underlay, What::UnderlayPing]);
        self.round(now, key, &whats, true);
    }

    pub(super) fn round(&mut self, now: Now, key: IpNet, whats: &[What], whole: bool) {
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
                explained: false,
            }));
        }
    }

    pub(super) fn close_rounds(&mut self, now: Now) {
        while let Some(key) = self.deadlines.closes.pop_due(now.at) {
            self.close_round(now, key);
        }
    }

    fn close_round(&mut self, now: Now, key: IpNet) {
        let mtu = self.local.mtu(key.into());
        let fault = self.fault_of(&key);
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let Some(round) = peer.round.take() else {
            return;
        };
        let passed = peer.standing.present.state.impact() != Impact::All;
        let assumed = fault.filter(|_| peer.is_covered()).map(|fault| fault.verdict);
        let Outcome { verdict, changed, again, counts } = peer.close(&round, mtu, now.at, assumed);
        let rounds = peer.turn.rounds;
        self.pace.losses.count(now.at, counts);
        if again && rounds < MAX_ROUNDS {
            let (urgency, at) = if round.whole {
                let next = now.at.max(round.began + ANSWER_TIMEOUT);
                (Urgency::Undecided, next)
            } else if self.common.of(key.into()).awaits(&key) {
                (Urgency::Decisive, now.at)
            } else if self.pace.sample.has(&key) {
                (Urgency::Sampled, now.at)
            } else {
                (Urgency::Walked, now.at)
            };
            self.deadlines.again.insert(urgency, at, key);
        } else if round.evidence.through() && !self.common.of(key.into()).awaits(&key) {
            // The peer was probed meanwhile and replies.
            self.deadlines.again.remove(&key);
        }
        self.grade(now, key);
        if changed && verdict.state == State::SmallMtu {
            if let Some(peer) = self.peers.get_mut(&key) {
                peer.carries = None;
            }
            self.mtu_search(now, key, verdict.ping_only);
        }
        if changed && verdict.state.impact() == Impact::All {
            self.look_again(now, key);
            let about = self.peers.get(&key).map(|peer| peer.short);
            self.viewer.trouble(now.at, about);
        }
        self.conclude(now, key, &round, verdict, passed);
    }

    /// Decides whether a healthy path is slow or lossy, and records a change of the state for the log.
    pub(super) fn grade(&mut self, now: Now, key: IpNet) {
        if let Some((was, is)) = self.grade_quietly(now, key)
            && let Some(peer) = self.peers.get(&key)
        {
            self.notices.push(Notice { target: peer.target.clone(), was, is });
        }
    }

    /// As [`Self::grade`], without a record for the log. The states are those before and after a change.
    pub(super) fn grade_quietly(&mut self, now: Now, key: IpNet) -> Option<(State, State)> {
        let fault = self.fault_of(&key);
        // The walk probes too rarely to distinguish losses by chance from others.
        let is_watched = self.pace.sample.has(&key);
        let peer = self.peers.get_mut(&key)?;
        if peer.shown == State::Slow && now.at.saturating_sub(peer.since.into()) >= SLOW_FOR_LONG {
            peer.history.adopt();
        }
        let is = match peer.verdict(fault).state {
            State::Well => grade(
                is_watched && peer.history.is_lossy(peer.shown == State::LosesSome),
                peer.history.is_slow(),
            ),
            state => state,
        };
        if is != State::SmallMtu {
            peer.mtu_search = None;
        }
        let was = std::mem::replace(&mut peer.shown, is);
        if was == is {
            return None;
        }
        peer.since = now.at.into();
        if is.impact() == Impact::All {
            peer.carries = None;
        }
        Some((was, is))
    }

    /// Schedules probes of a peer that another node does not reach. The other node may be the first to notice a
    /// fault.
    pub(super) fn hinted(&mut self, now: Now, short: u32) {
        if self.pace.hints.ready_at(now.at, ROUND_COST) > now.at {
            return;
        }
        let mut all = self.peers.iter().map(|(key, peer)| (*key, &**peer));
        let Some((key, peer)) = all.find(|(_, peer)| peer.short == short) else {
            return;
        };
        let lately =
            peer.times.asked.is_some_and(|at| now.at.saturating_sub(at.into()) < ANSWER_TIMEOUT);
        let waits = peer.round.is_some() || self.deadlines.again.contains(&key);
        if !lately && !waits && peer.shown.passes() && self.pace.hints.take(now.at, ROUND_COST) {
            self.deadlines.again.insert(Urgency::Sampled, now.at, key);
            if let Some(peer) = self.peers.get_mut(&key) {
                peer.turn.rounds = 0;
            }
        }
    }

    /// Probes a peer at once after its own probe arrives, if the verdict on it is `broken` or rests only on ping.
    pub(super) fn reconsider(&mut self, now: Now, key: IpNet, path: Path) {
        let fault = self.fault_of(&key);
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let present = peer.verdict(fault);
        // During a common fault, a received probe is news only if the verdict excludes its arrival.
        let is_old = match present.state {
            State::CutOff => false,
            State::OneWay => path == Path::Underlay,
            _ => true,
        };
        if fault.is_some() && peer.is_covered() && is_old {
            return;
        }
        let lately =
            peer.times.reconsidered.is_some_and(|at| now.at.saturating_sub(at.into()) < MIN_CYCLE);
        let waits = peer.round.is_some() || self.deadlines.again.contains(&key);
        if !lately && !waits && (present.ping_only || present.state.impact() == Impact::All) {
            peer.times.reconsidered = Some(now.at.into());
            peer.turn.rounds = 0;
            self.deadlines.again.insert(Urgency::Sampled, now.at, key);
        }
    }

    /// In microseconds.
    pub(super) fn median_us(&self) -> Option<u32> {
        let mut all: Vec<u32> =
            self.peers.values().filter_map(|peer| peer.history.rtt_us()).collect();
        let middle = all.len().checked_sub(1)? / 2;
        Some(*all.select_nth_unstable(middle).1)
    }

    /// Does nothing while a search is in progress.
    pub(super) fn mtu_search(&mut self, now: Now, key: IpNet, by_ping: bool) {
        let mtu = self.local.mtu(key.into());
        if let Some(peer) = self.peers.get_mut(&key).filter(|peer| peer.mtu_search.is_none()) {
            peer.mtu_search = Some(Box::new(MtuSearch::new(key.into(), mtu, by_ping)));
            self.deadlines.mtu_searches.insert(now.at, key);
        }
    }
}

/// The field of the evidence that stores the result of this kind of probe.
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
    use super::*;
    use crate::node::pods::tests::node;

    #[test]
    fn open_round_waits_longer_by_the_time_of_a_stall() {
        const STALL: Duration = Duration::from_secs(4);
        let key: IpNet = "10.5.2.0/24".parse().unwrap();
        let at = |at| Now { at, wall_ms: 0 };
        let begun = Duration::from_secs(10);
        let closes = begun + ANSWER_TIMEOUT + STALL;
        let mut node = node();
        node.begin(at(begun), key);
        node.stalled(STALL);
        // Another round that is due waits for the end of the open one.
        node.deadlines.again.insert(Urgency::Sampled, begun, key);
        node.repeat(at(begun));
        assert_eq!(node.deadlines.again.first(), Some(closes));
        node.close_rounds(at(closes - Duration::from_millis(1)));
        assert!(node.peers[&key].round.is_some());
        node.close_rounds(at(closes));
        assert!(node.peers[&key].round.is_none());
    }
}
