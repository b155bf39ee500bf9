//! Decides which initiations get curve operations, and in which order: first those from proven endpoints of
//! peers, then from other proven addresses, then the rest.

use crate::handshakes::allowance::{Allowances, endpoint_key, source_key};
use crate::handshakes::copies::Copies;
use crate::handshakes::pending::{INBOX, Message};
use crate::snapshot::Snapshot;
use packet_engine::drop_error::DropError;
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// With this many waiting initiations the node is under load, as in the kernel, and stays so for [`LOADED`]
/// afterwards. Only then must senders prove their address. Nothing else counts as load, so forged addresses
/// do not affect peers while the processor keeps up.
const LOAD: usize = INBOX / 8;
const LOADED: Duration = Duration::from_secs(1);
/// Maximum number of waiting initiations: from proven endpoints of peers, from other proven addresses, and
/// from the rest. The first number is high, because many peers may start at the same time.
const ROOM: [usize; 3] = [INBOX, LOAD, LOAD];
/// Maximum age of the cached list of peers' endpoints.
const KNOWN: Duration = Duration::from_secs(1);

/// Why an initiation is not queued.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AdmissionError {
    Drop(DropError),
    /// The sender first has to prove its address.
    Prove,
}

/// The waiting initiations, and what decides about further ones.
pub(crate) struct Admission {
    pub(crate) copies: Copies,
    /// Token buckets of unknown senders, by address. A flood from many addresses does not empty those of
    /// peers.
    strangers: Allowances,
    /// Token buckets of peers, by address and port, so that each node behind a NAT has its own.
    peers: Allowances,
    known: HashSet<SocketAddr>,
    looked: Option<Instant>,
    loaded: Option<Instant>,
    waiting: [VecDeque<Message>; 3],
}

impl Admission {
    pub(crate) fn new(now: Instant) -> Self {
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

    /// Queues an initiation whose mac1 is correct.
    pub(crate) fn admit(
        &mut self,
        mut message: Message,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Result<(), AdmissionError> {
        let rank = self.rank(&message, snapshot, now);
        if rank.is_none() && self.is_loaded(now) {
            return Err(if message.proven {
                AdmissionError::Drop(DropError::HandshakeLimit)
            } else {
                AdmissionError::Prove
            });
        }
        let rank = rank.unwrap_or(2);
        let (Some(queue), Some(room)) = (self.waiting.get_mut(rank), ROOM.get(rank)) else {
            return Ok(());
        };
        if queue.len() >= *room {
            return Err(AdmissionError::Drop(DropError::HandshakeFlood));
        }
        // Beyond its rate limit, a message is treated like one without a proof.
        message.proven = rank < 2;
        queue.push_back(message);
        Ok(())
    }

    /// The queue for a message whose sender proved its address; takes a token from its bucket. `None` without
    /// the proof, or if the bucket is empty.
    pub(crate) fn rank(
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
            return self.peers.take(endpoint_key(from), now).then_some(0);
        }
        self.strangers.take(source_key(from.ip()), now).then_some(1)
    }

    /// Takes the oldest initiation of the first queue that is not empty.
    pub(crate) fn next(&mut self) -> Option<Message> {
        self.waiting.iter_mut().find_map(VecDeque::pop_front)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    /// Whether it is the endpoint of a peer: configured, or learned from authentic datagrams.
    pub(crate) fn is_peer(&mut self, from: SocketAddr, snapshot: &Snapshot, now: Instant) -> bool {
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
