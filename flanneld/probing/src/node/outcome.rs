//! Effects of a round of probes on the state of a peer.

use super::peer::{PathTimes, PeerState, Round};
use crate::verdict::{Evidence, MIN_LOSSES, ProbeResult, expected, judge};
use std::time::Duration;
use types::reachability::{Impact, State, Verdict};

pub(super) struct Outcome {
    pub verdict: Verdict,
    /// Whether the verdict in force has changed.
    pub changed: bool,
    /// Whether the verdict needs another round for confirmation.
    pub again: bool,
    /// Number of probes that the round adds to the loss statistics, and of the losses among them.
    pub counts: (u32, u32),
}

impl PeerState {
    /// `mtu` is the overlay's MTU. `assumed` is the verdict of a fault that all peers have in common, if any.
    pub(super) fn close(
        &mut self,
        round: &Round,
        mtu: u16,
        now: Duration,
        assumed: Option<Verdict>,
    ) -> Outcome {
        let mut evidence = round.evidence;
        // Kernels limit how often they refuse (icmp_ratelimit). A long probe without a refusal therefore proves nothing.
        if round.refused && !round.ponged && evidence.full_ping == ProbeResult::Lost {
            evidence.full_ping = ProbeResult::NotAsked;
        }
        let present = self.standing.present;
        let verdict = judge(&evidence);
        // Probes of a whole round are lost together, so they show nothing about how often probes are lost.
        let answered = if round.whole { 0 } else { self.sample(&evidence, verdict, now) };
        self.note_paths(&evidence, round.whole, verdict, mtu);
        // A turn that got replies is as good as a round if nothing passed before.
        let mends = verdict.state == State::Well
            && (present.state == State::Unknown
                || present.state.impact() == Impact::All
                    && !verdict.ping_only
                    && evidence.through());
        let is_assumed = assumed.is_some_and(|assumed| assumed.state == verdict.state);
        let (changed, again) = if round.whole && is_assumed {
            // The common fault decides as long as it lasts.
            (false, false)
        } else if round.whole || mends {
            // Only the last probes decide, because an earlier loss may be over.
            let is_lossy = self.history.lost() >= MIN_LOSSES;
            let changed = self.standing.take(verdict, is_lossy);
            (changed, self.standing.is_undecided())
        } else {
            let present = assumed.unwrap_or(present);
            (false, !expected(present, &self.excused(evidence)))
        };
        let mut lost = 0;
        let explained = round.refused || round.explained || assumed.is_some();
        if changed && verdict.ping_only != present.ping_only || explained {
            // Either packets pass and one kind of probe is filtered or the daemon is silent. Or no packets pass, which is not chance.
            self.history.forgive_losses();
        } else if !again && evidence.asked_through() {
            // A reply over the underlay does not show what became of a probe over the overlay.
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
        Outcome { verdict, changed, again, counts }
    }

    /// Records the results of a round for long packets and for the underlay.
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

    /// Drops the data that a change of the verdict invalidates.
    fn changed(&mut self, from: Verdict, to: Verdict) {
        if from.state.impact() == Impact::All || to.state.impact() == Impact::All {
            self.history = self.history.after_a_break();
        }
        if to.state != State::WrongNode {
            self.answered_by = None;
        }
        if from.state == State::Unknown && to.state == State::CutOff {
            // This node knows a lease before its kernel has the route. Packets that arrived in between used the peer's former address.
            self.times.answered = PathTimes::default();
            self.times.received = PathTimes::default();
        }
    }

    /// Omits a loss over the underlay if a firewall explains it.
    fn excused(&self, evidence: Evidence) -> Evidence {
        if self.tunnel_only && evidence.underlay == ProbeResult::Lost {
            Evidence { underlay: ProbeResult::NotAsked, ..evidence }
        } else {
            evidence
        }
    }

    /// True if the rotation of long probes includes the peer.
    pub(super) fn is_asked_long(&self) -> bool {
        let present = self.standing.present;
        !present.ping_only && present.state.impact() <= Impact::None
    }

    /// Records the losses over the overlay. Ignores long probes if the path's MTU is too small, because their losses
    /// are not random. Returns the number of probes that got a reply.
    fn sample(&mut self, evidence: &Evidence, verdict: Verdict, now: Duration) -> u8 {
        let small =
            verdict.state == State::SmallMtu || self.standing.present.state == State::SmallMtu;
        let by_ping = self.standing.present.ping_only;
        let parts = if by_ping {
            [evidence.ping, ProbeResult::NotAsked]
        } else {
            [evidence.small, if small { ProbeResult::NotAsked } else { evidence.full }]
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

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Answered, Lost, NotAsked};
    use super::*;
    use crate::target::{Path, Target};

    /// A round in which every probe has the same result.
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
            explained: false,
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
