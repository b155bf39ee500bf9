//! Which initiations get curve operations, and in which order: peers at their own address before others who proved theirs, and those before the rest.

use super::allowance::{Allowances, exact, source};
use super::copies::Copies;
use super::pending::{INBOX, Message};
use super::snapshot::Snapshot;
use crate::reason::Reason;
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// So many that wait are load, and for so long afterwards, as in the kernel: until then nobody has to prove an address. What counts is what waits: below
/// what a processor can do, messages from forged addresses cost no peer anything.
const LOAD: usize = INBOX / 8;
const LOADED: Duration = Duration::from_secs(1);
/// How many wait by rank. Peers that start together may be many, each with its proof.
const ROOM: [usize; 3] = [INBOX, LOAD, LOAD];
/// How old what is known of peers' addresses may be.
const KNOWN: Duration = Duration::from_secs(1);

/// Why an initiation waits for no curve operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is dropped.
    Drop(Reason),
    /// Its sender has to prove its address.
    Prove,
}

/// The initiations that wait, and what decides about them.
pub(super) struct Admission {
    pub(super) copies: Copies,
    /// Buckets of all other senders, by address. A flood from many addresses leaves the buckets of peers untouched.
    strangers: Allowances,
    /// Buckets of peers at their endpoints, by address and port, so that neighbours behind one NAT have a bucket each.
    peers: Allowances,
    known: HashSet<SocketAddr>,
    looked: Option<Instant>,
    loaded: Option<Instant>,
    waiting: [VecDeque<Message>; 3],
}

impl Admission {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            copies: Copies::default(),
            strangers: Allowances::new(now),
            peers: Allowances::new(now),
            known: HashSet::new(),
            looked: None,
            loaded: None,
            waiting: Default::default(),
        }
    }

    /// Takes an initiation whose first MAC is right, and says whether it waits now.
    pub(super) fn admit(
        &mut self,
        mut message: Message,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Result<(), Refusal> {
        let rank = self.rank(&message, snapshot, now);
        if rank.is_none() && self.is_loaded(now) {
            return Err(if message.proven {
                Refusal::Drop(Reason::HandshakeLimit)
            } else {
                Refusal::Prove
            });
        }
        let rank = rank.unwrap_or(2);
        let (Some(queue), Some(room)) = (self.waiting.get_mut(rank), ROOM.get(rank)) else {
            return Ok(());
        };
        if queue.len() >= *room {
            return Err(Refusal::Drop(Reason::HandshakeFlood));
        }
        // Over its allowance it is as good as one without proof.
        message.proven = rank < 2;
        queue.push_back(message);
        Ok(())
    }

    /// The rank of a message whose sender proved its address, for a token of its source.
    pub(super) fn rank(
        &mut self,
        message: &Message,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Option<usize> {
        if !message.proven {
            return None;
        }
        let from = message.from.to;
        if self.is_peer(from, snapshot, now) {
            return self.peers.take(exact(from), now).then_some(0);
        }
        self.strangers.take(source(from.ip()), now).then_some(1)
    }

    /// The next initiation by rank.
    pub(super) fn next(&mut self) -> Option<Message> {
        self.waiting.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Whether initiations wait.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    /// Whether a peer's datagrams go there: configured, or learned from what was authentic.
    pub(super) fn is_peer(&mut self, from: SocketAddr, snapshot: &Snapshot, now: Instant) -> bool {
        if self
            .looked
            .is_none_or(|looked| now.saturating_duration_since(looked) >= KNOWN)
        {
            self.looked = Some(now);
            self.known.clear();
            self.known.extend(
                snapshot
                    .peers
                    .iter()
                    .filter_map(|peer| Some(peer.endpoint()?.to)),
            );
        }
        self.known.contains(&from)
    }

    fn is_loaded(&mut self, now: Instant) -> bool {
        if self.waiting.iter().map(VecDeque::len).sum::<usize>() >= LOAD {
            self.loaded = Some(now);
        }
        self.loaded
            .is_some_and(|last| now.saturating_duration_since(last) < LOADED)
    }
}
