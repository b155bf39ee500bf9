//! Work that waits for the handshake thread: messages, peers whose timers are due, and peers that await an
//! initiation.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::handshakes::allowance::{endpoint_key, source_key};
use packet_engine::socket::endpoint::Endpoint;

/// Maximum number of waiting initiations, and likewise of waiting responses and cookie replies. More are
/// dropped before any computation.
pub(crate) const INBOX: usize = 1024;
/// From this number of waiting messages on, each source has a share, so that a flood from few sources leaves
/// room for others. `SHARE_OF_PORT` is for a pair of address and port. `SHARE_OF_SOURCE` is for an address
/// with all its ports, which nodes behind one NAT have in common.
const CROWDED: usize = INBOX / 8;
const SHARE_OF_PORT: u16 = 64;
const SHARE_OF_SOURCE: u16 = 512;
/// The size of each table that counts waiting messages by source. A hash assigns sources to counters; it
/// changes each time the inbox is emptied.
const SHARES: usize = 256;

/// The longest handshake message in bytes: an initiation.
const LONGEST: usize = 148;

/// A received handshake message.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub(crate) from: Endpoint,
    bytes: [u8; LONGEST],
    length: u8,
    /// Whether the sender proved its address and has a token for curve operations. False in the inbox, where
    /// nothing has been checked yet.
    pub(crate) proven: bool,
}

impl Message {
    /// `None` if the message is longer than any handshake message.
    pub(crate) fn new(from: Endpoint, message: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..message.len())?.copy_from_slice(message);
        Some(Self { from, bytes, length: u8::try_from(message.len()).ok()?, proven: false })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    pub(crate) fn is_initiation(&self) -> bool {
        self.bytes.first() == Some(&1)
    }

    pub(crate) fn is_response(&self) -> bool {
        self.bytes.first() == Some(&2)
    }
}

/// Waiting messages, and their number by source.
struct Inbox {
    messages: Vec<Message>,
    by_port: [u16; SHARES],
    by_source: [u16; SHARES],
    keys: RandomState,
    /// How often the inbox was emptied.
    turn: u64,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            by_port: [0; SHARES],
            by_source: [0; SHARES],
            keys: RandomState::new(),
            turn: 0,
        }
    }
}

impl Inbox {
    /// False if the inbox is full, or the share of the message's source is used up.
    fn push(&mut self, message: Message) -> bool {
        let place = |key: u128| self.keys.hash_one((self.turn, key)) as usize % SHARES;
        let (port, source) =
            (place(endpoint_key(message.from.to)), place(source_key(message.from.ip())));
        let (Some(port), Some(source)) =
            (self.by_port.get_mut(port), self.by_source.get_mut(source))
        else {
            return false;
        };
        let waiting = self.messages.len();
        if waiting >= INBOX
            || waiting >= CROWDED && (*port >= SHARE_OF_PORT || *source >= SHARE_OF_SOURCE)
        {
            return false;
        }
        *port += 1;
        *source += 1;
        self.messages.push(message);
        true
    }

    /// Moves the waiting messages to `into`, if that is empty.
    fn empty(&mut self, into: &mut Vec<Message>) {
        if into.is_empty() && !self.messages.is_empty() {
            std::mem::swap(&mut self.messages, into);
            self.by_port.fill(0);
            self.by_source.fill(0);
            self.turn = self.turn.wrapping_add(1);
        }
    }
}

/// The work that waits for the handshake thread, and the signal that wakes it.
#[derive(Default)]
pub(crate) struct Pending {
    queues: Mutex<Queues>,
    bell: Condvar,
}

#[derive(Default)]
struct Queues {
    initiations: Inbox,
    /// Responses and cookie replies. Their senders know the index of an initiation or session of this node.
    answers: Inbox,
    /// Peers by the time at which their timers next run. An entry is valid only while the peer's timers are
    /// still scheduled for this time.
    due: BinaryHeap<Reverse<(Instant, u32)>>,
    to_initiate: VecDeque<u32>,
    /// Whether new work waits.
    rung: bool,
    waiting: bool,
}

impl Pending {
    /// Makes a system call only if the thread sleeps.
    fn ring_for(&self, mut queues: MutexGuard<'_, Queues>) {
        queues.rung = true;
        let waiting = std::mem::take(&mut queues.waiting);
        drop(queues);
        if waiting {
            self.bell.notify_one();
        }
    }

    pub(crate) fn ring(&self) {
        self.ring_for(self.queues.lock());
    }

    /// False if too many messages wait already.
    pub(crate) fn leave(&self, message: Message) -> bool {
        let mut queues = self.queues.lock();
        let inbox =
            if message.is_initiation() { &mut queues.initiations } else { &mut queues.answers };
        if !inbox.push(message) {
            return false;
        }
        self.ring_for(queues);
        true
    }

    /// Moves waiting messages to the two lists. A list that still contains messages stays as it is.
    pub(crate) fn take(&self, answers: &mut Vec<Message>, initiations: &mut Vec<Message>) {
        let mut queues = self.queues.lock();
        queues.answers.empty(answers);
        queues.initiations.empty(initiations);
    }

    /// Schedules the time `due` for a peer's timers.
    pub(crate) fn schedule(&self, due: Instant, slot: u32) {
        let mut queues = self.queues.lock();
        let sooner = queues.due.peek().is_none_or(|Reverse((first, _))| due < *first);
        queues.due.push(Reverse((due, slot)));
        if sooner {
            self.ring_for(queues);
        }
    }

    /// Removes the earliest entry of the schedule if it is due: its time and the peer's slot.
    pub(crate) fn due(&self, now: Instant) -> Option<(Instant, u32)> {
        let mut queues = self.queues.lock();
        let Reverse((first, _)) = queues.due.peek()?;
        if *first > now {
            return None;
        }
        queues.due.pop().map(|Reverse(entry)| entry)
    }

    /// Schedules a handshake initiation, which is sent as soon as the rate limit allows.
    pub(crate) fn schedule_initiation(&self, slot: u32) {
        let mut queues = self.queues.lock();
        queues.to_initiate.push_back(slot);
        self.ring_for(queues);
    }

    /// The next peer that awaits an initiation, and whether more wait.
    pub(crate) fn next_initiation(&self) -> Option<(u32, bool)> {
        let mut queues = self.queues.lock();
        let slot = queues.to_initiate.pop_front()?;
        Some((slot, !queues.to_initiate.is_empty()))
    }

    pub(crate) fn has_initiations(&self) -> bool {
        !self.queues.lock().to_initiate.is_empty()
    }

    /// The earliest time for which a peer's timers are scheduled.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queues.lock().due.peek().map(|Reverse((due, _))| *due)
    }

    /// Waits until new work arrives, or until the time `until`.
    pub(crate) fn wait(&self, until: Option<Instant>) {
        let mut queues = self.queues.lock();
        if !queues.rung
            && queues.initiations.messages.is_empty()
            && queues.answers.messages.is_empty()
        {
            queues.waiting = true;
            match until {
                None => self.bell.wait(&mut queues),
                Some(until) => {
                    self.bell.wait_until(&mut queues, until);
                }
            }
        }
        queues.waiting = false;
        queues.rung = false;
    }
}
