//! A session: the keys of its two directions, the counters of each. Threads seal and open in it side by side.

use crate::crypto::{KEY, TAG, cipher, nonce};
use crate::error::Refused;
use crate::message::{DataHead, Kind};
use crate::window::{REACH, Window};
use ring::aead::{Aad, LessSafeKey};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use zerocopy::{FromBytes, IntoBytes};

/// The length of what comes before a sealed packet.
const HEAD: usize = size_of::<DataHead>();
/// By how much a sealed packet is longer than the packet.
pub const OVERHEAD: usize = HEAD + TAG;
/// Packets of one direction from which on the session is over (REJECT_AFTER_MESSAGES): the window must not pass the last counter.
const REJECT_AFTER: u64 = u64::MAX - REACH - 65;

/// A session with a peer. Its age, and whether the peer has confirmed it, is for its owner to know.
pub struct Session {
    sending: LessSafeKey,
    receiving: LessSafeKey,
    local: u32,
    remote: u32,
    /// The counter of the next packet.
    next: AtomicU64,
    /// Held for the few instructions that a counter takes.
    window: Mutex<Window>,
}

impl Session {
    pub(crate) fn new(sending: &[u8; KEY], receiving: &[u8; KEY], local: u32, remote: u32) -> Self {
        Self {
            sending: cipher(sending),
            receiving: cipher(receiving),
            local,
            remote,
            next: AtomicU64::new(0),
            window: Mutex::new(Window::new()),
        }
    }

    /// Our index, which datagrams of the peer carry.
    pub fn index(&self) -> u32 {
        self.local
    }

    /// The number of packets sealed so far.
    pub fn sealed(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Seals the packet that begins at byte 16 of a buffer, in place. The buffer is as long as the datagram: the packet and [`OVERHEAD`].
    ///
    /// # Errors
    /// The session has sealed as many packets as it may, or the buffer is shorter than that.
    #[inline]
    pub fn seal(&self, datagram: &mut [u8]) -> Result<(), Refused> {
        let counter = self.next.fetch_add(1, Ordering::Relaxed);
        if counter >= REJECT_AFTER {
            // It stays there, however often this is tried.
            self.next.store(REJECT_AFTER, Ordering::Relaxed);
            return Err(Refused::Exhausted);
        }
        let (head, rest) = datagram
            .split_at_mut_checked(HEAD)
            .ok_or(Refused::Malformed)?;
        let length = rest.len().checked_sub(TAG).ok_or(Refused::Malformed)?;
        let (packet, tag) = rest
            .split_at_mut_checked(length)
            .ok_or(Refused::Malformed)?;
        let sealed = self
            .sending
            .seal_in_place_separate_tag(nonce(counter), Aad::empty(), packet)
            .map_err(|_| Refused::Malformed)?;
        tag.copy_from_slice(sealed.as_ref());
        head.copy_from_slice(
            DataHead {
                kind: Kind::Data.word(),
                receiver: self.remote.into(),
                counter: counter.into(),
            }
            .as_bytes(),
        );
        Ok(())
    }

    /// The index in a datagram that carries a packet; none if it is too short for one, or of another kind.
    #[inline]
    pub fn index_in(datagram: &[u8]) -> Option<u32> {
        let (head, _) = DataHead::ref_from_prefix(datagram).ok()?;
        (head.kind == Kind::Data.word() && datagram.len() >= OVERHEAD).then(|| head.receiver.get())
    }

    /// Opens a datagram in place: the packet is at its beginning then, with its padding. Returns its length, zero for a keepalive.
    ///
    /// # Errors
    /// It is not authentic, or was received before; the datagram may be damaged then.
    #[inline]
    pub fn open(&self, datagram: &mut [u8]) -> Result<usize, Refused> {
        let (head, _) = DataHead::ref_from_prefix(datagram).map_err(|_| Refused::Malformed)?;
        let counter = head.counter.get();
        if counter >= REJECT_AFTER {
            return Err(Refused::Exhausted);
        }
        let packet = self
            .receiving
            .open_within(nonce(counter), Aad::empty(), datagram, HEAD..)
            .map_err(|_| Refused::Tag)?;
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.take(counter) {
            Ok(packet.len())
        } else {
            Err(Refused::Replayed)
        }
    }
}

#[cfg(test)]
mod tests;
