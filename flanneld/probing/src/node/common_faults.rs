//! Search for a fault that all peers of a family have in common, and the fault's effects on each peer.

use super::common_fault::{CommonOutage, FRESH, Progress};
use super::deadlines::Urgency;
use super::machine::Node;
use super::message::{CommonNotice, Now};
use super::peer::{PeerState, Round};
use crate::verdict::{Evidence, ProbeResult};
use crate::who::mix;
use ipnet::IpNet;
use std::time::Duration;
use types::Family;
use types::reachability::{Impact, State, Verdict};

impl Node {
    pub(super) fn fault_of(&self, key: &IpNet) -> Option<CommonOutage> {
        self.common.of(Family::from(key)).found()
    }

    /// Updates the search after a round of probes with one peer. `passed` states whether replies were possible under
    /// the peer's previous verdict.
    pub(super) fn conclude(
        &mut self,
        now: Now,
        key: IpNet,
        round: &Round,
        verdict: Verdict,
        passed: bool,
    ) {
        let (family, evidence) = (Family::from(key), &round.evidence);
        // A turn may have probed only the underlay.
        if round.whole || evidence.through() {
            let progress = self.common.of_mut(family).judged(now.at, &key, verdict);
            self.progress(now, family, progress);
        }
        let search = self.common.of_mut(family);
        let asks = match search.found() {
            Some(fault) if evidence.other || !refutes(evidence, fault.verdict) => false,
            Some(_) => {
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.exempt = true;
                }
                self.grade(now, key);
                self.common.of_mut(family).refuted(now.at)
            }
            None if evidence.through() => {
                search.passed();
                false
            }
            None => passed && fails(evidence) && search.failed(now.at, key),
        };
        if asks {
            self.search(now, family);
        }
    }

    /// Probes additional peers, to determine whether all peers of the family have the same fault.
    fn search(&mut self, now: Now, family: Family) {
        let search = self.common.of(family);
        let is_fresh = |key: &IpNet, peer: &PeerState| {
            Family::from(*key) == family && !search.has_failed(key) && peer.is_covered()
        };
        // Peers that were silent before, such as removed machines with a lease, show nothing about a new fault. The order is otherwise random, because
        // adjacent subnets are often of one rack, which may fail as a whole.
        let salt = (self.random)();
        let mut fresh: Vec<(bool, u64, IpNet)> = self
            .peers
            .iter()
            .filter(|(key, peer)| is_fresh(key, peer))
            .map(|(key, peer)| {
                let order = mix([salt, peer.short.into(), 5]);
                (!peer.may_refute(), order, *key)
            })
            .collect();
        fresh.sort_unstable();
        let fresh: Vec<IpNet> = fresh.into_iter().map(|(.., key)| key).take(FRESH).collect();
        for key in &fresh {
            self.deadlines.again.insert(Urgency::Decisive, now.at, *key);
        }
        let progress = self.common.of_mut(family).ask(now.at, &fresh);
        self.progress(now, family, progress);
    }

    fn progress(&mut self, now: Now, family: Family, progress: Progress) {
        let is_found = match progress {
            Progress::None => return,
            Progress::Found => true,
            Progress::Over => false,
        };
        let peers: Vec<IpNet> =
            self.peers.keys().filter(|key| Family::from(**key) == family).copied().collect();
        let fault = self.common.of(family).found();
        for key in &peers {
            let Some(peer) = self.peers.get_mut(key) else {
                continue;
            };
            peer.exempt &= is_found && fault.is_some_and(|fault| fault.since < now.at);
            // Chance does not explain the losses so far, or those of outstanding probes.
            peer.history.forgive_losses();
            if let Some(round) = &mut peer.round {
                round.explained = true;
            }
            let is_broken = peer.standing.present.state.impact() == Impact::All;
            if !is_broken {
                // The common result decides about this peer.
                self.deadlines.again.remove(key);
            } else if !is_found {
                peer.turn.rounds = 0;
                self.deadlines.again.insert(Urgency::Sampled, now.at, *key);
            }
            self.grade_quietly(now, *key);
        }
        self.common_notices.push(match fault {
            Some(fault) => {
                self.viewer.trouble(now.at, None);
                CommonNotice {
                    family,
                    state: fault.verdict.state,
                    asked: self.asked_since(family, fault.began),
                    peers: peers.len(),
                }
            }
            None => CommonNotice { family, state: State::Well, asked: 0, peers: peers.len() },
        });
    }

    /// The number of a family's peers that this node has probed since a common fault began and that have not replied.
    pub(super) fn asked_since(&self, family: Family, began: Duration) -> usize {
        self.peers
            .iter()
            .filter(|(key, peer)| {
                Family::from(**key) == family && peer.is_covered() && peer.is_asked_since(began)
            })
            .count()
    }
}

/// True if no reply arrived over the overlay. The probes over the underlay count only if no scheduled probe used the
/// overlay.
fn fails(evidence: &Evidence) -> bool {
    if evidence.asked_through() {
        !evidence.through()
    } else {
        let underlay = [evidence.underlay, evidence.underlay_ping];
        underlay.contains(&ProbeResult::Lost) && !underlay.contains(&ProbeResult::Answered)
    }
}

fn refutes(evidence: &Evidence, verdict: Verdict) -> bool {
    let underlay = [evidence.underlay, evidence.underlay_ping];
    evidence.through()
        || verdict.state == State::CutOff && underlay.contains(&ProbeResult::Answered)
}
