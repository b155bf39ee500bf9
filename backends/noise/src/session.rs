//! A session: the keys and the counters of its two directions. Several threads can seal and open packets in a session concurrently.

use crate::crypto::{KEY, TAG, cipher, nonce};
use crate::error::NoiseError;
use crate::message::{DataHead, Kind};
use crate::window::{REACH, Window};
use parking_lot::Mutex;
use ring::aead::{Aad, LessSafeKey};
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Length of the header before a sealed packet, in bytes.
const HEAD: usize = size_of::<DataHead>();
/// Number of bytes that sealing adds to a packet.
pub const OVERHEAD: usize = HEAD + TAG;
/// Number of packets in one direction after which the session is over (REJECT_AFTER_MESSAGES). The limit leaves room
/// for the replay window below the largest 64-bit counter.
const REJECT_AFTER: u64 = u64::MAX - REACH - 65;

/// A session with a peer. The owner of a session records the session's age, and whether the peer has confirmed the session.
pub struct Session {
    sending: LessSafeKey,
    receiving: LessSafeKey,
    local: u32,
    remote: u32,
    /// The counter of the next packet.
    next: AtomicU64,
    /// The window of received counters, which a thread locks only for the few instructions that check a counter.
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

    /// Returns this node's index, which the peer's datagrams carry.
    pub fn index(&self) -> u32 {
        self.local
    }

    /// Returns the number of packets that this node has sealed in the session.
    pub fn sealed(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Seals in place the packet that begins at byte 16 of a buffer. The buffer has the length of the
    /// datagram: the length of the packet plus [`OVERHEAD`].
    ///
    /// # Errors
    /// Returns an error if the session has sealed its maximum number of packets, or if the buffer is shorter than [`OVERHEAD`].
    #[inline]
    pub fn seal(&self, datagram: &mut [u8]) -> Result<(), NoiseError> {
        let counter = self.next.fetch_add(1, Ordering::Relaxed);
        if counter >= REJECT_AFTER {
            // The counter stays at the limit, however often a caller tries to seal.
            self.next.store(REJECT_AFTER, Ordering::Relaxed);
            return Err(NoiseError::Exhausted);
        }
        let (head, rest) = datagram.split_at_mut_checked(HEAD).ok_or(NoiseError::Malformed)?;
        let length = rest.len().checked_sub(TAG).ok_or(NoiseError::Malformed)?;
        let (packet, tag) = rest.split_at_mut_checked(length).ok_or(NoiseError::Malformed)?;
        let sealed = self
            .sending
            .seal_in_place_separate_tag(nonce(counter), Aad::empty(), packet)
            .map_err(|_| NoiseError::Malformed)?;
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

    /// Returns the session index in a data message, or `None` if the datagram is too short or of another message type.
    #[inline]
    pub fn index_in(datagram: &[u8]) -> Option<u32> {
        let (head, _) = DataHead::ref_from_prefix(datagram).ok()?;
        (head.kind == Kind::Data.word() && datagram.len() >= OVERHEAD).then(|| head.receiver.get())
    }

    /// Opens a datagram in place. After success, the packet with its padding is at the beginning of the buffer. Returns the length
    /// of the packet in bytes, which is zero for a keepalive.
    ///
    /// # Errors
    /// Returns an error if the datagram is not authentic, if this node received the datagram before, or if
    /// the session is over. After an error, the buffer may no longer contain the datagram.
    #[inline]
    pub fn open(&self, datagram: &mut [u8]) -> Result<usize, NoiseError> {
        let (head, _) = DataHead::ref_from_prefix(datagram).map_err(|_| NoiseError::Malformed)?;
        let counter = head.counter.get();
        if counter >= REJECT_AFTER {
            return Err(NoiseError::Exhausted);
        }
        let packet = self
            .receiving
            .open_within(nonce(counter), Aad::empty(), datagram, HEAD..)
            .map_err(|_| NoiseError::Tag)?;
        let mut window = self.window.lock();
        if window.take(counter) { Ok(packet.len()) } else { Err(NoiseError::Replayed) }
    }
}

#[cfg(test)]
mod tests;
