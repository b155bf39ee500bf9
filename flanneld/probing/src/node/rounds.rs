//! Turns, and the rounds that look into what they bring.

use super::machine::Node;
use super::message::{COST, Notice, Now, WAIT, What};
use super::mtu_search::MtuSearch;
use super::peer::{History, Peer, Round};
use crate::schedule::{SHORTEST, ways};
use crate::verdict::{Evidence, LOSES, ProbeResult, expected, grade, judge};
use ipnet::IpNet;
use std::time::Duration;
use types::reachability::{Impact, State, Verdict};

/// Rounds after a turn, at most.
const ROUNDS: u8 = 5;
/// Peers that answer ping alone are asked a question every so many turns,
const ASKED_EVERY: u32 = 10;
/// and a long ping every so many.
const LONG_PING_EVERY: u32 = 4;
/// While the MTU is too small it is searched again every so many turns.
const MTU_SEARCH_INTERVAL: u32 = 8;
/// How often the median of all round trips is taken.
const TYPICAL_EVERY: Duration = Duration::from_secs(5);

impl Node {
    /// Starts the turns that are due.
    pub(super) fn turns(&mut self, now: Now) {
        loop {
            let peers = &self.peers;
            let paths = peers.len();
            let Some(key) = self
                .walk
                .turn(now.at, || peers.iter().map(|(key, peer)| (*key, peer.who)))
            else {
                return;
            };
            let Some(peer) = self.peers.get_mut(&key) else {
                continue;
            };
            peer.turns = peer.turns.wrapping_add(1);
            peer.rounds = 0;
            let (present, turn, who) = (peer.standing.present, peer.turns, peer.who);
            let (mut done, peer_refuses) = (peer.full_done, peer.refuses);
            let ways = ways(who, turn, paths);
            let through = self.overlay_of(&key).is_some();
            let harmed = present.state == State::SmallMtu || present.state.impact() == Impact::All;
            if harmed && self.retries.take(now.at, COST) {
                self.begin(now, key);
                if present.state == State::SmallMtu && turn.is_multiple_of(MTU_SEARCH_INTERVAL) {
                    self.mtu_search(now, key, present.ping_only);
                }
            } else if present.ping_only {
                let mut whats = vec![if through {
                    What::Ping
                } else {
                    What::UnderlayPing
                }];
                if through && turn.is_multiple_of(LONG_PING_EVERY) {
                    whats.push(What::FullPing);
                }
                if peer_refuses || turn.is_multiple_of(ASKED_EVERY) {
                    whats.push(if through { What::Small } else { What::Underlay });
                }
                self.round(now, key, &whats, false);
            } else {
                let mut whats = Vec::with_capacity(2);
                if through && (ways.overlay || present.state == State::Unknown) {
                    let waits = |round: u32| {
                        self.peers.iter().any(|(other, peer)| {
                            *other != key && peer.full_done != round && peer.is_asked_long()
                        })
                    };
                    whats.push(if self.full.turn(now.at, &mut done, waits) {
                        What::Full
                    } else {
                        What::Small
                    });
                }
                if ways.underlay || !through {
                    whats.push(if self.local.clear {
                        What::Underlay
                    } else {
                        What::UnderlayPing
                    });
                }
                self.round(now, key, &whats, false);
            }
            if let Some(peer) = self.peers.get_mut(&key) {
                peer.full_done = done;
            }
        }
    }

    /// Asks again where something was lost, as far as the budget goes.
    pub(super) fn repeat(&mut self, now: Now) {
        while let Some((at, key)) = self.again.first().copied().filter(|(at, _)| *at <= now.at) {
            if !self.retries.take(now.at, COST) {
                return;
            }
            self.again.remove(&(at, key));
            self.begin(now, key);
        }
    }

    /// A whole round.
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
        self.rounds += 1;
        let number = self.rounds;
        let mut evidence = Evidence::default();
        let mut open = 0;
        for what in whats {
            if self.ask(now, key, *what, number) {
                open += 1;
                if let Some(heard) = part(&mut evidence, *what) {
                    *heard = ProbeResult::Lost;
                }
            }
        }
        if open == 0 {
            return;
        }
        let closes = now.at + WAIT;
        self.closes.insert((closes, key));
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.rounds = peer.rounds.saturating_add(1);
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
        while let Some((at, key)) = self.closes.first().copied().filter(|(at, _)| *at <= now.at) {
            self.closes.remove(&(at, key));
            let typical = self.typical(now.at);
            let mtu = self.local.mtu(key.into());
            let Some(peer) = self.peers.get_mut(&key) else {
                continue;
            };
            let Some(round) = peer.round.take() else {
                continue;
            };
            let mut evidence = round.evidence;
            // Kernels limit how often they refuse (icmp_ratelimit): that a long question was not refused says nothing.
            if round.refused && !round.ponged && evidence.full_ping == ProbeResult::Lost {
                evidence.full_ping = ProbeResult::NotAsked;
            }
            let present = peer.standing.present;
            let verdict = judge(&evidence);
            peer.sample(&evidence, verdict, now.at);
            if [evidence.full, evidence.full_ping].contains(&ProbeResult::Answered)
                && !evidence.other
            {
                peer.carries = Some(mtu);
            }
            if evidence.underlay == ProbeResult::Answered
                || round.whole && verdict != Verdict::of(State::Well)
            {
                peer.tunnel_only = false;
            } else if round.whole && evidence.underlay == ProbeResult::Lost {
                peer.tunnel_only = true;
            }
            let underlay = if peer.tunnel_only && evidence.underlay == ProbeResult::Lost {
                ProbeResult::NotAsked
            } else {
                evidence.underlay
            };
            let looked_into =
                round.whole || present.state == State::Unknown && verdict.state == State::Well;
            let (mut changed, mut again) = (false, false);
            if looked_into {
                changed = peer.standing.take(verdict, peer.history.lost() >= LOSES);
                again = peer.standing.is_undecided();
            } else if !expected(
                present,
                &Evidence {
                    underlay,
                    ..evidence
                },
            ) {
                again = true;
            }
            if changed && verdict.ping_only != present.ping_only || round.refused {
                // Packets pass; one kind of question is filtered, or its daemon is silent.
                peer.history.forgive_losses();
            } else if !again {
                peer.history.count_losses();
            }
            if changed {
                if present.state.impact() == Impact::All || verdict.state.impact() == Impact::All {
                    peer.history = History::default();
                }
                if verdict.state != State::WrongNode {
                    peer.answered_by = None;
                }
            }
            if again && peer.rounds < ROUNDS {
                let next = if round.whole {
                    now.at.max(round.began + WAIT)
                } else {
                    now.at
                };
                self.again.insert((next, key));
            }
            self.tell(now, key, typical);
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
    }

    /// Grades the verdict, and tells what changed.
    fn tell(&mut self, now: Now, key: IpNet, typical: Option<u32>) {
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

    /// A question of a peer came in whose state does not let one expect that: it is asked at once.
    pub(super) fn look_into(&mut self, now: Now, key: IpNet) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let present = peer.standing.present;
        let lately = peer
            .looked_at
            .is_some_and(|at| now.at.saturating_sub(at.into()) < SHORTEST);
        let waits = peer.round.is_some() || self.again.iter().any(|(_, other)| *other == key);
        if !lately && !waits && (present.ping_only || present.state.impact() == Impact::All) {
            peer.looked_at = Some(now.at.into());
            peer.rounds = 0;
            self.again.insert((now.at, key));
        }
    }

    /// The median of all peers' round trips.
    fn typical(&mut self, now: Duration) -> Option<u32> {
        if self.typical_us.1.is_none() || now.saturating_sub(self.typical_us.0) >= TYPICAL_EVERY {
            self.typical_us = (now, self.median_us());
        }
        self.typical_us.1
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

    /// Searches how large a packet the way carries.
    fn mtu_search(&mut self, now: Now, key: IpNet, by_ping: bool) {
        let mtu = self.local.mtu(key.into());
        if let Some(peer) = self
            .peers
            .get_mut(&key)
            .filter(|peer| peer.mtu_search.is_none())
        {
            peer.mtu_search = Some(Box::new(MtuSearch::new(key.into(), mtu, by_ping)));
            self.mtu_searches.insert((now.at, key));
        }
    }
}

impl Peer {
    /// Whether it has its turn in long questions.
    fn is_asked_long(&self) -> bool {
        let present = self.standing.present;
        !present.ping_only && present.state.impact() <= Impact::None
    }

    /// Notes what was lost through the overlay network. Long questions are not lost by chance where the MTU is too small.
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
        for heard in parts {
            match heard {
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
