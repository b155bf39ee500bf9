//! Decides for which initiations the node performs curve operations, and in which order. The node first handles
//! initiations from proven endpoints of peers, then initiations from other proven addresses, then the remaining
//! initiations.

use super::allowance::{Allowances, exact, source};
use super::copies::Copies;
use super::pending::{INBOX, Message};
use super::snapshot::Snapshot;
use crate::reason::Reason;
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Minimum number of waiting initiations at which the node is under load, as in the kernel. After the queue has
/// become shorter than this minimum, the node remains under load for [`LOADED`]. Senders must prove their address only while the
/// node is under load. The queue length is the only criterion for load, so messages from forged addresses do not
/// affect peers while the processor keeps up.
const LOAD: usize = INBOX / 8;
const LOADED: Duration = Duration::from_secs(1);
/// Maximum numbers of waiting initiations: from proven endpoints of peers, from other proven addresses, and from the
/// remaining senders. The first number is high, because many peers may start at the same time, each with a proven
/// address.
const ROOM: [usize; 3] = [INBOX, LOAD, LOAD];
/// Maximum age of the cached list of peers' endpoints.
const KNOWN: Duration = Duration::from_secs(1);

/// Why the node does not queue an initiation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AdmissionError {
    /// Initiation that the node drops for the given reason.
    Drop(Reason),
    /// Lack of proof of the sender's address.
    Prove,
}

/// The waiting initiations, and the token buckets and endpoints that determine whether the node queues further initiations.
pub(super) struct Admission {
    pub(super) copies: Copies,
    /// Token buckets of unknown senders, by address. A flood from many addresses does not empty the token buckets of peers.
    strangers: Allowances,
    /// Token buckets of peers, by endpoint address and port, so that each node behind a NAT has its own bucket.
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

    /// Queues an initiation whose mac1 is correct, or returns the reason why the node rejects the initiation.
    pub(super) fn admit(
        &mut self,
        mut message: Message,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Result<(), AdmissionError> {
        let rank = self.rank(&message, snapshot, now);
        if rank.is_none() && self.is_loaded(now) {
            return Err(if message.proven {
                AdmissionError::Drop(Reason::HandshakeLimit)
            } else {
                AdmissionError::Prove
            });
        }
        let rank = rank.unwrap_or(2);
        let (Some(queue), Some(room)) = (self.waiting.get_mut(rank), ROOM.get(rank)) else {
            return Ok(());
        };
        if queue.len() >= *room {
            return Err(AdmissionError::Drop(Reason::HandshakeFlood));
        }
        // Beyond its rate limit, a message is treated like one without a proof.
        message.proven = rank < 2;
        queue.push_back(message);
        Ok(())
    }

    /// Returns the index of the queue for a message whose sender proved its address, and takes a token from that sender's bucket. Returns
    /// `None` if the sender did not prove its address, or if the sender's bucket is empty.
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

    /// Removes and returns the oldest initiation in the first queue that is not empty.
    pub(super) fn next(&mut self) -> Option<Message> {
        self.waiting.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Returns whether initiations wait in a queue.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    /// Returns whether an address is the endpoint of a peer: configured, or learned from authentic datagrams.
    pub(super) fn is_peer(&mut self, from: SocketAddr, snapshot: &Snapshot, now: Instant) -> bool {
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= KNOWN) {
            self.looked = Some(now);
            self.known.clear();
            self.known.extend(snapshot.peers.iter().filter_map(|peer| Some(peer.endpoint()?.to)));
        }
        self.known.contains(&from)
    }

    fn is_loaded(&mut self, now: Instant) -> bool {
        if self.waiting.iter().map(VecDeque::len).sum::<usize>() >= LOAD {
            self.loaded = Some(now);
        }
        self.loaded.is_some_and(|last| now.saturating_duration_since(last) < LOADED)
    }
}
