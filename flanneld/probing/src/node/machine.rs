//! State of a node that probes its peers, and the sequence of its periodic work.

use super::common_fault::CommonFaults;
use super::deadlines::{Deadlines, Urgency};
use super::losses::Losses;
use super::message::{CommonNotice, LocalNode, Notice, Now, ROUND_COST, Send};
use super::outstanding::Outstanding;
use super::peer::PeerState;
use super::session::Session;
use super::stranger::Asked;
use super::viewer::Viewer;
use crate::limits::{AnswerLimits, BROKEN_PEERS, Bucket, HINTS, RETRIES, ROW_QUESTIONS, SEARCHES};
use crate::schedule::{Ends, FullSize, Sample, Walk};
use crate::target::{Path, Target};
use crate::view::{Own, Traffic};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use types::{Family, Histogram};

pub struct Node {
    pub(super) local: LocalNode,
    /// Whether a socket for a path and an address family is open. The boolean argument is true for a ping socket.
    pub(super) can: Box<dyn Fn(Path, Family, bool) -> bool + std::marker::Send>,
    pub(super) random: Box<dyn FnMut() -> u64 + std::marker::Send>,
    pub(super) began: Duration,
    pub(super) own: Own,
    /// This node's last encoded report, and when the node encoded it.
    pub(super) row: Option<(Duration, Vec<u8>)>,
    /// The peers by subnet. The map stores boxes, because a map that grows by single insertions has half-empty tree nodes.
    pub(super) peers: BTreeMap<IpNet, Box<PeerState>>,
    /// Peers by their underlay address, sorted. The peers' overlay addresses follow from their subnets.
    pub(super) addresses: Vec<(IpAddr, IpNet)>,
    pub(super) outstanding: Outstanding,
    pub(super) deadlines: Deadlines,
    pub(super) pace: Pace,
    pub(super) common: CommonFaults,
    pub(super) limits: AnswerLimits,
    pub(super) viewer: Viewer,
    pub(super) sessions: Sessions,
    pub(super) traffic: Traffic,
    pub(super) rtts: Histogram,
    /// Hosts without a lease that probe this node.
    pub(super) strangers: BTreeMap<IpAddr, Asked>,
    pub(super) out: Vec<Send>,
    pub(super) notices: Vec<Notice>,
    pub(super) common_notices: Vec<CommonNotice>,
}

pub(super) struct Pace {
    pub(super) walk: Walk<IpNet>,
    pub(super) sample: Sample<IpNet>,
    pub(super) full: FullSize,
    pub(super) retries: Bucket,
    pub(super) searches: Bucket,
    pub(super) broken: Bucket,
    pub(super) hints: Bucket,
    pub(super) rounds: u64,
    pub(super) losses: Losses,
}

/// Sessions in which this node probes one peer at the request of a caller.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) open: BTreeMap<u64, Session>,
    pub(super) begun: u64,
}

impl Node {
    /// `random` generates unpredictable nonces, because a guessable nonce would let other hosts forge replies.
    pub fn new(
        local: LocalNode,
        now: Duration,
        random: impl FnMut() -> u64 + std::marker::Send + 'static,
    ) -> Self {
        let own = local.who_v4.or(local.who_v6).unwrap_or(0);
        Self {
            local,
            can: Box::new(|_, _, _| true),
            random: Box::new(random),
            began: now,
            own: Own::default(),
            row: None,
            peers: BTreeMap::new(),
            addresses: Vec::new(),
            outstanding: Outstanding::default(),
            deadlines: Deadlines::default(),
            pace: Pace {
                walk: Walk::new(own, now),
                sample: Sample::new(),
                full: FullSize::default(),
                retries: Bucket::new(RETRIES, now),
                searches: Bucket::new(SEARCHES, now),
                broken: Bucket::new(BROKEN_PEERS, now),
                hints: Bucket::new(HINTS, now),
                rounds: 0,
                losses: Losses::default(),
            },
            common: CommonFaults::default(),
            limits: AnswerLimits::new(now),
            viewer: Viewer::new(Bucket::new(ROW_QUESTIONS, now)),
            sessions: Sessions::default(),
            traffic: Traffic::default(),
            rtts: Histogram::default(),
            strangers: BTreeMap::new(),
            out: Vec::new(),
            notices: Vec::new(),
            common_notices: Vec::new(),
        }
    }

    /// Sets the function that tells whether a socket is open, by path, family and kind (ping or probe). A path
    /// without a socket yields no evidence for verdicts.
    #[cfg(any(test, feature = "prober"))]
    pub(crate) fn set_sockets(
        &mut self,
        can: impl Fn(Path, Family, bool) -> bool + std::marker::Send + 'static,
    ) {
        self.can = Box::new(can);
    }

    #[cfg(any(test, feature = "prober"))]
    pub(crate) fn set_local(&mut self, local: LocalNode) {
        for (key, peer) in &mut self.peers {
            let family = Family::from(key);
            if local.mtu(family) != self.local.mtu(family) {
                peer.carries = None;
            }
        }
        self.local = local;
    }

    /// Sets the report about this node that other nodes request.
    pub fn set_own(&mut self, own: Own) {
        if self.own != own {
            self.own = own;
            self.row = None;
        }
    }

    /// A peer that remains the same node at the same address keeps its probe results.
    pub fn set_targets(&mut self, targets: Vec<Target>, now: Duration) {
        let mut before = std::mem::take(&mut self.peers);
        let mut new = Vec::new();
        for target in targets {
            let key = target.subnet;
            let known = before.remove(&key).filter(|known| known.is_same_node(&target));
            if known.is_none() {
                new.push((key, target.who().unwrap_or(0)));
            }
            let peer = match known {
                Some(mut known) => {
                    known.target = target;
                    known
                }
                None => Box::new(PeerState::new(target, now, (self.random)())),
            };
            self.peers.insert(key, peer);
        }
        let gone = |key: &IpNet| !self.peers.contains_key(key);
        let fresh: BTreeSet<IpNet> = new.iter().map(|(key, _)| *key).collect();
        let stays = |key: &IpNet| !gone(key) && !fresh.contains(key);
        self.deadlines.retain(stays);
        self.outstanding.retain(stays);
        self.viewer.retain(stays);
        self.common.retain(stays);
        self.pace.walk.retain(stays);
        for (key, who) in new {
            self.pace.walk.add(key, who);
        }
        let on_link = self.peers.values().filter(|peer| peer.target.on_link);
        self.pace.walk.set_on_link(on_link.count());
        if !fresh.is_empty() || !before.is_empty() {
            self.choose_sample(now);
        }
        // Reserves exactly one element per peer.
        self.addresses = Vec::new();
        self.addresses.reserve_exact(self.peers.len());
        self.addresses.extend(self.peers.iter().map(|(key, peer)| (peer.target.address, *key)));
        self.addresses.sort_unstable();
    }

    fn choose_sample(&mut self, now: Duration) {
        let ends = self.peers.iter().filter_map(|(key, peer)| {
            // The lower half is the number of the subnet.
            let own = self.local.who(key.into())? & u64::from(u32::MAX);
            Some(Ends { key: *key, own: u32::try_from(own).ok()?, other: peer.short })
        });
        let ends: Vec<Ends<IpNet>> = ends.collect();
        self.pace.sample.choose(now, &ends);
    }

    /// Does all work that is due for the peers, and returns the time of the next work.
    pub fn wake(&mut self, now: Now) -> Duration {
        self.traffic.lost += self.outstanding.expire(now.at);
        self.close_rounds(now);
        self.step_mtu_searches(now);
        self.repeat(now);
        self.look_at_broken(now);
        self.turns(now);
        self.step_sessions(now);
        self.ask_rows(now);
        self.next_wake(now)
    }

    fn next_wake(&mut self, now: Now) -> Duration {
        let retry = |bucket: &mut Bucket, at: Duration| at.max(bucket.ready_at(now.at, ROUND_COST));
        let again = self.deadlines.again.first().map(|at| retry(&mut self.pace.retries, at));
        let decisive = self
            .deadlines
            .again
            .first_of(Urgency::Decisive)
            .map(|at| retry(&mut self.pace.searches, at));
        let broken = self.deadlines.broken.first().map(|at| retry(&mut self.pace.broken, at));
        let sessions = self.sessions.open.values().map(|session| session.next).min();
        // Probes expire at the next turn: an extra wake-up would cost as much as a probe.
        let due = [
            again,
            decisive,
            self.deadlines.mtu_searches.first(),
            broken,
            self.deadlines.closes.first(),
            sessions,
            self.viewer.next(now.at),
        ];
        due.into_iter()
            .chain([self.pace.sample.next()])
            .flatten()
            .fold(self.pace.walk.next(), Duration::min)
    }

    /// True if only scheduled probes are outstanding, so that no reply is urgent.
    #[cfg(any(test, feature = "prober"))]
    pub(crate) fn is_calm(&self) -> bool {
        self.sessions.open.is_empty()
            && self.deadlines.mtu_searches.is_empty()
            && self.deadlines.again.is_empty()
    }

    /// Extends all deadlines by the time for which the kernel did not schedule the program. Replies that arrived
    /// during this time are late, but not lost.
    pub fn stalled(&mut self, by: Duration) {
        self.deadlines.closes.delay(by);
        self.deadlines.mtu_searches.delay(by);
        self.peers
            .values_mut()
            .filter_map(|peer| peer.round.as_mut())
            .for_each(|round| round.closes += by);
        self.outstanding.delay(by);
        self.sessions.open.values_mut().for_each(|session| session.delay(by));
        self.pace.walk.delay(by);
        self.pace.sample.delay(by);
    }

    pub fn take_sends(&mut self) -> Vec<Send> {
        std::mem::take(&mut self.out)
    }

    /// Removes the notices of changed peer states.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Removes the notices of common faults that began or ended.
    pub fn take_common_notices(&mut self) -> Vec<CommonNotice> {
        std::mem::take(&mut self.common_notices)
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic
    }
}
