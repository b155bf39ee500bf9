//! What waits for the thread that makes the handshakes: messages, peers that are due, peers to be greeted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::message::LONGEST;
use crate::endpoint::Endpoint;

/// The most handshake messages that wait. A flood beyond that is dropped before anything is computed for it.
const INBOX: usize = 1024;

/// A received handshake message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) from: Endpoint,
    bytes: [u8; LONGEST],
    length: u8,
}

impl Message {
    /// None if it is too long to be one.
    pub(super) fn new(from: Endpoint, message: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..message.len())?.copy_from_slice(message);
        Some(Self { from, bytes, length: u8::try_from(message.len()).ok()? })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
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
    inbox: VecDeque<Message>,
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
        if queues.inbox.len() >= INBOX {
            return false;
        }
        queues.inbox.push_back(message);
        self.ring_for(queues);
        true
    }

    /// Takes at most as many messages as `into` has room for without growing.
    pub(super) fn take(&self, into: &mut Vec<Message>) {
        let mut queues = self.lock();
        let count = queues.inbox.len().min(into.capacity() - into.len());
        into.extend(queues.inbox.drain(..count));
    }

    /// Enters the time of a peer's next visit.
    pub(super) fn schedule(&self, due: Instant, slot: u32) {
        let mut queues = self.lock();
        let sooner = queues.due.peek().is_none_or(|Reverse((first, _))| due < *first);
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
        if !queues.rung && queues.inbox.is_empty() {
            queues.waiting = true;
            queues = match until {
                None => self.bell.wait(queues).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.bell.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        queues.waiting = false;
        queues.rung = false;
    }
}
