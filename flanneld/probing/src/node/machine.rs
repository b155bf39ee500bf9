//! The node itself: what it keeps, and the order in which it does what is due.

use super::message::{COST, LocalNode, Notice, Now, Send, Waiting};
use super::peer::Peer;
use super::session::Session;
use super::viewer::Viewer;
use crate::limits::{
    ANSWERS, ANSWERS_AN_ADDRESS, Bucket, Buckets, RETRIES, ROW_QUESTIONS, ROWS, ROWS_AN_ADDRESS,
};
use crate::schedule::{FullSize, Walk};
use crate::target::{Path, Target};
use crate::view::{Own, Traffic};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use types::Family;

/// A node.
pub struct Node {
    pub(super) local: LocalNode,
    /// Whether there is a socket for a way, a family (IPv6?), and ping or not.
    pub(super) can: Box<dyn Fn(Path, Family, bool) -> bool + std::marker::Send>,
    pub(super) random: Box<dyn FnMut() -> u64 + std::marker::Send>,
    pub(super) began: Duration,
    pub(super) own: Own,
    /// This node's row as it was written last, and when.
    pub(super) row: Option<(Duration, Vec<u8>)>,
    /// Boxed, because a map that grows by single insertions has half empty nodes.
    pub(super) peers: BTreeMap<IpNet, Box<Peer>>,
    /// Which peers are reached at an address of the underlay, in order. Their addresses in the overlay network follow from their subnets.
    pub(super) addresses: Vec<(IpAddr, IpNet)>,
    pub(super) waiting: HashMap<u64, Waiting>,
    pub(super) forget: VecDeque<(Duration, u64)>,
    pub(super) closes: BTreeSet<(Duration, IpNet)>,
    pub(super) again: BTreeSet<(Duration, IpNet)>,
    pub(super) mtu_searches: BTreeSet<(Duration, IpNet)>,
    pub(super) walk: Walk<IpNet>,
    pub(super) full: FullSize,
    pub(super) retries: Bucket,
    pub(super) rounds: u64,
    pub(super) typical_us: (Duration, Option<u32>),
    pub(super) answers: (Bucket, Buckets<IpAddr>),
    pub(super) rows_to: Buckets<IpAddr>,
    pub(super) rows_in_all: Bucket,
    pub(super) viewer: Viewer,
    pub(super) sessions: BTreeMap<u64, Session>,
    pub(super) sessions_begun: u64,
    pub(super) traffic: Traffic,
    pub(super) out: Vec<Send>,
    pub(super) notices: Vec<Notice>,
}

impl Node {
    /// A node without peers. `random` makes nonces: whoever can guess them can forge answers.
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
            waiting: HashMap::new(),
            forget: VecDeque::new(),
            closes: BTreeSet::new(),
            again: BTreeSet::new(),
            mtu_searches: BTreeSet::new(),
            walk: Walk::new(own, now),
            full: FullSize::default(),
            retries: Bucket::new(RETRIES, now),
            rounds: 0,
            typical_us: (now, None),
            answers: (Bucket::new(ANSWERS, now), Buckets::new(ANSWERS_AN_ADDRESS)),
            rows_to: Buckets::new(ROWS_AN_ADDRESS),
            rows_in_all: Bucket::new(ROWS, now),
            viewer: Viewer::new(Bucket::new(ROW_QUESTIONS, now)),
            sessions: BTreeMap::new(),
            sessions_begun: 0,
            traffic: Traffic::default(),
            out: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Which ways are open: what cannot be asked proves nothing. By way, family (IPv6?), and ping or not.
    #[cfg(any(test, feature = "prober"))]
    pub(crate) fn set_sockets(
        &mut self,
        can: impl Fn(Path, Family, bool) -> bool + std::marker::Send + 'static,
    ) {
        self.can = Box::new(can);
    }

    /// What changed of itself: addresses, MTU.
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

    /// What it says of itself in its row.
    pub fn set_own(&mut self, own: Own) {
        if self.own != own {
            self.own = own;
            self.row = None;
        }
    }

    /// The peers as the leases say. What is known of those that stay is kept.
    pub fn set_targets(&mut self, targets: Vec<Target>, now: Duration) {
        let mut before = std::mem::take(&mut self.peers);
        let mut new = Vec::new();
        for target in targets {
            let key = target.subnet;
            let known = before
                .remove(&key)
                .filter(|known| known.is_same_node(&target));
            if known.is_none() {
                new.push((key, target.who().unwrap_or(0)));
            }
            let peer = match known {
                Some(mut known) => {
                    known.target = target;
                    known
                }
                None => Box::new(Peer::new(target, now, (self.random)())),
            };
            self.peers.insert(key, peer);
        }
        let gone = |key: &IpNet| !self.peers.contains_key(key);
        let fresh: BTreeSet<IpNet> = new.iter().map(|(key, _)| *key).collect();
        let stays = |key: &IpNet| !gone(key) && !fresh.contains(key);
        self.closes.retain(|(_, key)| stays(key));
        self.again.retain(|(_, key)| stays(key));
        self.mtu_searches.retain(|(_, key)| stays(key));
        self.waiting.retain(|_, waiting| stays(&waiting.key));
        self.viewer.retain(|key| stays(key));
        self.walk.retain(|key| stays(key));
        for (key, who) in new {
            self.walk.add(key, who);
        }
        // Room for all of them, and no more.
        self.addresses = Vec::new();
        self.addresses.reserve_exact(self.peers.len());
        self.addresses.extend(
            self.peers
                .iter()
                .map(|(key, peer)| (peer.target.address, *key)),
        );
        self.addresses.sort_unstable();
    }

    /// Does what is due. Returns when it wants to be called again.
    pub fn wake(&mut self, now: Now) -> Duration {
        while self
            .forget
            .front()
            .is_some_and(|(until, _)| *until <= now.at)
        {
            if let Some((_, nonce)) = self.forget.pop_front() {
                self.waiting.remove(&nonce);
            }
        }
        self.close_rounds(now);
        self.step_mtu_searches(now);
        self.repeat(now);
        self.turns(now);
        self.step_sessions(now);
        self.ask_rows(now);
        self.next_wake(now)
    }

    fn next_wake(&mut self, now: Now) -> Duration {
        let first = |set: &BTreeSet<(Duration, IpNet)>| set.first().map(|(at, _)| *at);
        let retry = |bucket: &mut Bucket, at: Duration| at.max(bucket.ready_at(now.at, COST));
        let again = first(&self.again).map(|at| retry(&mut self.retries, at));
        let mtu_search = first(&self.mtu_searches);
        let sessions = self.sessions.values().map(|session| session.next).min();
        // What is only to be forgotten waits for the next turn: to wake for it would cost as much as a question.
        let due = [
            again,
            mtu_search,
            first(&self.closes),
            sessions,
            self.viewer.next(now.at),
        ];
        due.into_iter()
            .flatten()
            .fold(self.walk.next(), Duration::min)
    }

    /// Whether nothing is asked beyond the usual turns: nobody waits for an answer.
    #[cfg(any(test, feature = "prober"))]
    pub(crate) fn is_calm(&self) -> bool {
        self.sessions.is_empty() && self.mtu_searches.is_empty() && self.again.is_empty()
    }

    /// The program did not run for so long: nothing is lost because nobody looked.
    pub fn stalled(&mut self, by: Duration) {
        let later = |set: &mut BTreeSet<(Duration, IpNet)>| {
            *set = std::mem::take(set)
                .into_iter()
                .map(|(at, key)| (at + by, key))
                .collect();
        };
        later(&mut self.closes);
        later(&mut self.mtu_searches);
        self.peers
            .values_mut()
            .filter_map(|peer| peer.round.as_mut())
            .for_each(|round| round.closes += by);
        self.forget.iter_mut().for_each(|(until, _)| *until += by);
        self.sessions
            .values_mut()
            .for_each(|session| session.delay(by));
        self.walk.delay(by);
    }

    /// What is to be sent.
    pub fn take_sends(&mut self) -> Vec<Send> {
        std::mem::take(&mut self.out)
    }

    /// Which verdicts changed.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// What was sent and heard.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }
}
