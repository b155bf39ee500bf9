//! What waits for the thread that makes the handshakes: messages, peers that are due, peers to be greeted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::allowance::{exact, source};
use super::message::LONGEST;
use crate::endpoint::Endpoint;

/// The most initiations that wait, and the most messages of other kinds. A flood beyond that is dropped before anything is computed for it.
pub(super) const INBOX: usize = 1024;
/// Once so many wait, a source has at most a share of them, so that a flood from a few sources leaves room for others: so many for an address with its
/// port, and for an address with all of them. Neighbours behind one NAT have the same address.
const CROWDED: usize = INBOX / 8;
const SHARE_OF_PORT: u16 = 64;
const SHARE_OF_SOURCE: u16 = 512;
/// Sources share by hash, and with others each time that the inbox is emptied.
const SHARES: usize = 256;

/// A received handshake message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) from: Endpoint,
    bytes: [u8; LONGEST],
    length: u8,
    /// Whether its sender proved its address, and has a curve operation left. Unknown, and false, while it waits here.
    pub(super) proven: bool,
}

impl Message {
    /// None if it is too long to be one.
    pub(super) fn new(from: Endpoint, message: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..message.len())?.copy_from_slice(message);
        Some(Self {
            from,
            bytes,
            length: u8::try_from(message.len()).ok()?,
            proven: false,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }

    /// Whether it begins a handshake.
    pub(super) fn is_initiation(&self) -> bool {
        self.bytes.first() == Some(&1)
    }

    /// Whether it answers an initiation with what makes a session.
    pub(super) fn is_response(&self) -> bool {
        self.bytes.first() == Some(&2)
    }
}

/// Messages that wait, and how many there are by source.
struct Inbox {
    messages: Vec<Message>,
    by_port: [u16; SHARES],
    by_source: [u16; SHARES],
    keys: RandomState,
    /// How often it was emptied.
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
    /// False if there is no room for a message of its source.
    fn push(&mut self, message: Message) -> bool {
        let place = |key: u128| self.keys.hash_one((self.turn, key)) as usize % SHARES;
        let (port, source) = (
            place(exact(message.from.to)),
            place(source(message.from.ip())),
        );
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

    /// Exchanges what waits for an empty list. One that is not empty stays.
    fn empty(&mut self, into: &mut Vec<Message>) {
        if into.is_empty() && !self.messages.is_empty() {
            std::mem::swap(&mut self.messages, into);
            self.by_port.fill(0);
            self.by_source.fill(0);
            self.turn = self.turn.wrapping_add(1);
        }
    }
}

/// The waiting work, and who waits for it.
#[derive(Default)]
pub(super) struct Pending {
    queues: Mutex<Queues>,
    bell: Condvar,
}

#[derive(Default)]
struct Queues {
    initiations: Inbox,
    /// What answers our own messages. Its sender knows the index of one of our sessions.
    answers: Inbox,
    /// Peers by the time of their next visit. An entry counts only if it is the time that the peer itself has.
    due: BinaryHeap<Reverse<(Instant, u32)>>,
    greet: VecDeque<u32>,
    /// Whether there is something new for the thread.
    rung: bool,
    waiting: bool,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread. A call to the kernel only if it sleeps.
    fn ring_for(&self, mut queues: MutexGuard<'_, Queues>) {
        queues.rung = true;
        let waiting = std::mem::take(&mut queues.waiting);
        drop(queues);
        if waiting {
            self.bell.notify_one();
        }
    }

    /// Wakes the thread.
    pub(super) fn ring(&self) {
        self.ring_for(self.lock());
    }

    /// Leaves a message. False if too many wait already.
    pub(super) fn leave(&self, message: Message) -> bool {
        let mut queues = self.lock();
        let inbox = if message.is_initiation() {
            &mut queues.initiations
        } else {
            &mut queues.answers
        };
        if !inbox.push(message) {
            return false;
        }
        self.ring_for(queues);
        true
    }

    /// Takes all that waits, of each kind of which nothing is left from before.
    pub(super) fn take(&self, answers: &mut Vec<Message>, initiations: &mut Vec<Message>) {
        let mut queues = self.lock();
        queues.answers.empty(answers);
        queues.initiations.empty(initiations);
    }

    /// Enters the time of a peer's next visit.
    pub(super) fn schedule(&self, due: Instant, slot: u32) {
        let mut queues = self.lock();
        let sooner = queues
            .due
            .peek()
            .is_none_or(|Reverse((first, _))| due < *first);
        queues.due.push(Reverse((due, slot)));
        if sooner {
            self.ring_for(queues);
        }
    }

    /// The next peer that is due.
    pub(super) fn due(&self, now: Instant) -> Option<(Instant, u32)> {
        let mut queues = self.lock();
        let Reverse((first, _)) = queues.due.peek()?;
        if *first > now {
            return None;
        }
        queues.due.pop().map(|Reverse(entry)| entry)
    }

    /// Enters a peer with whom a handshake is to be initiated as soon as the pace allows.
    pub(super) fn greet(&self, slot: u32) {
        let mut queues = self.lock();
        queues.greet.push_back(slot);
        self.ring_for(queues);
    }

    /// The next peer to be greeted, and whether there are more.
    pub(super) fn greeting(&self) -> Option<(u32, bool)> {
        let mut queues = self.lock();
        let slot = queues.greet.pop_front()?;
        Some((slot, !queues.greet.is_empty()))
    }

    /// Whether peers are to be greeted.
    pub(super) fn greets(&self) -> bool {
        !self.lock().greet.is_empty()
    }

    /// When the next peer is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.lock().due.peek().map(|Reverse((due, _))| *due)
    }

    /// Waits until something is new, or until a time.
    pub(super) fn wait(&self, until: Option<Instant>) {
        let mut queues = self.lock();
        if !queues.rung
            && queues.initiations.messages.is_empty()
            && queues.answers.messages.is_empty()
        {
            queues.waiting = true;
            queues = match until {
                None => self
                    .bell
                    .wait(queues)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.bell
                        .wait_timeout(queues, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        queues.waiting = false;
        queues.rung = false;
    }
}
