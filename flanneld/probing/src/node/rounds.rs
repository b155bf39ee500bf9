//! Turns, and the rounds that verify what a turn shows.

use super::deadlines::Urgency;
use super::machine::Node;
use super::message::{ANSWER_TIMEOUT, Notice, Now, ROUND_COST, What};
use super::mtu_search::MtuSearch;
use super::peer::{PathTimes, PeerState, Round};
use crate::schedule::{MIN_CYCLE, SAMPLE_CYCLE, turn_paths};
use crate::target::Path;
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
/// What has been slow for this long is usual.
const SLOW_FOR_LONG: Duration = Duration::from_secs(3600);

impl Node {
    /// Starts the turns that are due.
    pub(super) fn turns(&mut self, now: Now) {
        while let Some(key) = self.pace.sample.turn(now.at) {
            self.turn(now, key);
        }
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
        if present.state == State::SmallMtu && self.pace.broken.take(now.at, ROUND_COST) {
            self.begin(now, key);
            if turn.is_multiple_of(MTU_SEARCH_INTERVAL) {
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
        while let Some((urgency, key)) = self.deadlines.again.due(now.at) {
            let round = self.peers.get(&key).and_then(|peer| peer.round.as_ref());
            if let Some(round) = round {
                // Its result is awaited first.
                let closes = round.closes.max(now.at + Duration::from_micros(1));
                self.deadlines.again.remove(&key);
                self.deadlines.again.insert(urgency, closes, key);
                continue;
            }
            if !self.pace.retries.take(now.at, ROUND_COST) {
                return;
            }
            self.deadlines.again.remove(&key);
            self.begin(now, key);
        }
    }

    /// Asks all of the peers that are known to be broken, in turn: their state may be another one by now.
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

    /// Plans the next look at a peer that is broken.
    fn look_again(&mut self, now: Now, key: IpNet) {
        let at = now.at + SAMPLE_CYCLE;
        self.deadlines.broken.insert(Urgency::Walked, at, key);
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
        let mtu = self.local.mtu(key.into());
        let fault = self.fault_of(&key);
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let Some(round) = peer.round.take() else {
            return;
        };
        let passed = peer.standing.present.state.impact() != Impact::All;
        let assumed = fault
            .filter(|_| peer.is_covered())
            .map(|fault| fault.verdict);
        let Outcome {
            verdict,
            changed,
            again,
            counts,
        } = peer.close(&round, mtu, now.at, assumed);
        let rounds = peer.turn.rounds;
        self.pace.losses.count(now.at, counts);
        if again && rounds < MAX_ROUNDS {
            let (urgency, at) = if round.whole {
                let next = now.at.max(round.began + ANSWER_TIMEOUT);
                (Urgency::Undecided, next)
            } else if self.pace.sample.has(&key) {
                (Urgency::Sampled, now.at)
            } else {
                (Urgency::Walked, now.at)
            };
            self.deadlines.again.insert(urgency, at, key);
        } else if round.evidence.through() && !self.common.of(key.into()).awaits(&key) {
            // It was asked meanwhile, and is well.
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

    /// Grades the verdict, and notes a change for the log.
    pub(super) fn grade(&mut self, now: Now, key: IpNet) {
        if let Some((was, is)) = self.grade_quietly(now, key)
            && let Some(peer) = self.peers.get(&key)
        {
            self.notices.push(Notice {
                target: peer.target.clone(),
                was,
                is,
            });
        }
    }

    /// Grades the verdict. Returns the states before and after a change.
    pub(super) fn grade_quietly(&mut self, now: Now, key: IpNet) -> Option<(State, State)> {
        let fault = self.fault_of(&key);
        // The walk asks too rarely to tell chance from loss.
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

    /// Asks a peer soon that another node does not reach: it may be the first to know.
    pub(super) fn hinted(&mut self, now: Now, short: u32) {
        if self.pace.hints.ready_at(now.at, ROUND_COST) > now.at {
            return;
        }
        let mut all = self.peers.iter().map(|(key, peer)| (*key, &**peer));
        let Some((key, peer)) = all.find(|(_, peer)| peer.short == short) else {
            return;
        };
        let lately = peer
            .times
            .asked
            .is_some_and(|at| now.at.saturating_sub(at.into()) < ANSWER_TIMEOUT);
        let waits = peer.round.is_some() || self.deadlines.again.contains(&key);
        if !lately && !waits && peer.shown.passes() && self.pace.hints.take(now.at, ROUND_COST) {
            self.deadlines.again.insert(Urgency::Sampled, now.at, key);
            if let Some(peer) = self.peers.get_mut(&key) {
                peer.turn.rounds = 0;
            }
        }
    }

    /// Asks a peer at once whose question arrived although its state does not let one expect that.
    pub(super) fn reconsider(&mut self, now: Now, key: IpNet, path: Path) {
        let fault = self.fault_of(&key);
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let present = peer.verdict(fault);
        // What is heard of many peers says something new only where nothing was to be heard.
        let is_old = match present.state {
            State::CutOff => false,
            State::OneWay => path == Path::Underlay,
            _ => true,
        };
        if fault.is_some() && peer.is_covered() && is_old {
            return;
        }
        let lately = peer
            .times
            .reconsidered
            .is_some_and(|at| now.at.saturating_sub(at.into()) < MIN_CYCLE);
        let waits = peer.round.is_some() || self.deadlines.again.contains(&key);
        if !lately && !waits && (present.ping_only || present.state.impact() == Impact::All) {
            peer.times.reconsidered = Some(now.at.into());
            peer.turn.rounds = 0;
            self.deadlines.again.insert(Urgency::Sampled, now.at, key);
        }
    }

    /// Returns the median of all peers' round trips in microseconds.
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
    /// How many questions it adds to what is known of losses, and how many of these were lost.
    counts: (u32, u32),
}

impl PeerState {
    /// Takes the results of a round over the overlay of this MTU. `assumed` is the verdict by a fault that all peers have in common.
    fn close(
        &mut self,
        round: &Round,
        mtu: u16,
        now: Duration,
        assumed: Option<Verdict>,
    ) -> Outcome {
        let mut evidence = round.evidence;
        // Kernels limit how often they refuse (icmp_ratelimit): a long question that was not refused proves nothing.
        if round.refused && !round.ponged && evidence.full_ping == ProbeResult::Lost {
            evidence.full_ping = ProbeResult::NotAsked;
        }
        let present = self.standing.present;
        let verdict = judge(&evidence);
        // Questions of a whole round are lost together: they tell nothing about how often that happens.
        let answered = if round.whole {
            0
        } else {
            self.sample(&evidence, verdict, now)
        };
        self.note_paths(&evidence, round.whole, verdict, mtu);
        // A turn that is answered is as good as a round where nothing passed before.
        let mends = verdict.state == State::Well
            && (present.state == State::Unknown
                || present.state.impact() == Impact::All
                    && !verdict.ping_only
                    && evidence.through());
        let is_assumed = assumed.is_some_and(|assumed| assumed.state == verdict.state);
        let (changed, again) = if round.whole && is_assumed {
            // The fault decides as long as it is there.
            (false, false)
        } else if round.whole || mends {
            // Only the last questions: what was lost for long need not be lost now.
            let is_lossy = self.history.lost() >= MIN_LOSSES;
            let changed = self.standing.take(verdict, is_lossy);
            (changed, self.standing.is_undecided())
        } else {
            let present = assumed.unwrap_or(present);
            (false, !expected(present, &self.excused(evidence)))
        };
        let mut lost = 0;
        if changed && verdict.ping_only != present.ping_only || round.refused || assumed.is_some() {
            // Packets pass, and one kind of question is filtered, or its daemon is silent; or none pass, which is no chance.
            self.history.forgive_losses();
        } else if !again {
            lost = self.history.count_losses();
        }
        if changed {
            self.changed(present, verdict);
        }
        let counts =
            if verdict.state.impact() == Impact::All || present.state.impact() == Impact::All {
                (0, 0)
            } else {
                (u32::from(answered) + u32::from(lost), u32::from(lost))
            };
        Outcome {
            verdict,
            changed,
            again,
            counts,
        }
    }

    /// Notes what a round shows of sizes and of the underlay.
    fn note_paths(&mut self, evidence: &Evidence, whole: bool, verdict: Verdict, mtu: u16) {
        if [evidence.full, evidence.full_ping].contains(&ProbeResult::Answered) && !evidence.other {
            self.carries = Some(mtu);
        }
        if evidence.underlay == ProbeResult::Answered
            || whole && verdict != Verdict::of(State::Well)
        {
            self.tunnel_only = false;
        } else if whole && evidence.underlay == ProbeResult::Lost {
            self.tunnel_only = true;
        }
    }

    /// Forgets what a change of the verdict makes void.
    fn changed(&mut self, from: Verdict, to: Verdict) {
        if from.state.impact() == Impact::All || to.state.impact() == Impact::All {
            self.history = self.history.after_a_break();
        }
        if to.state != State::WrongNode {
            self.answered_by = None;
        }
        if from.state == State::Unknown && to.state == State::CutOff {
            // A lease is known here before the kernel has its route: what came meanwhile came by the peer's former address.
            self.times.answered = PathTimes::default();
            self.times.received = PathTimes::default();
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

    /// Notes what was lost over the overlay. Long questions are not lost by chance where the MTU is too small. Returns how many were answered.
    fn sample(&mut self, evidence: &Evidence, verdict: Verdict, now: Duration) -> u8 {
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
        let mut answered = 0;
        for result in parts {
            match result {
                ProbeResult::NotAsked => {}
                ProbeResult::Answered => {
                    self.history.answered();
                    answered += 1;
                }
                ProbeResult::Lost => self.history.unanswered(now),
            }
        }
        answered
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
    use crate::target::Target;

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
            on_link: true,
        };
        for (first, remembered) in [(None, false), (Some(Answered), true)] {
            let mut peer = PeerState::new(target.clone(), now, 1);
            if let Some(fate) = first {
                peer.close(&round(fate), 1450, now, None);
            }
            peer.times.answered.note(Path::Overlay, now);
            peer.times.received.note(Path::Underlay, now);
            for _ in 0..4 {
                peer.close(&round(Lost), 1450, now, None);
            }
            assert_eq!(peer.standing.present.state, State::CutOff);
            assert_eq!(peer.times.answered.overlay.is_some(), remembered);
            assert_eq!(peer.times.received.underlay.is_some(), remembered);
        }
    }
}
