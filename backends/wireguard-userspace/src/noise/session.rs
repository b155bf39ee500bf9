//! A session: the keys and the counters of its two directions. Several threads can seal and open packets in
//! it concurrently.

use super::crypto::{KEY, TAG, counter_nonce, new_cipher};
use super::error::NoiseError;
use super::message::{DataHead, Kind};
use super::window::{REACH, Window};
use parking_lot::Mutex;
use ring::aead::{Aad, LessSafeKey};
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// The header before a sealed packet, in bytes.
pub const HEAD: usize = size_of::<DataHead>();
/// Bytes that sealing adds to a packet.
pub const OVERHEAD: usize = HEAD + TAG;
/// After this many packets in one direction the session is over (REJECT_AFTER_MESSAGES). This leaves room for
/// the replay window below the largest 64-bit counter.
const REJECT_AFTER: u64 = u64::MAX - REACH - 65;

/// The owner records its age, and whether the peer has confirmed it.
pub struct Session {
    sending: LessSafeKey,
    receiving: LessSafeKey,
    local: u32,
    remote: u32,
    /// The counter of the next packet.
    next: AtomicU64,
    /// Locked only for the few instructions that check a counter.
    window: Mutex<Window>,
}

impl Session {
    pub(crate) fn new(sending: &[u8; KEY], receiving: &[u8; KEY], local: u32, remote: u32) -> Self {
        Self {
            sending: new_cipher(sending),
            receiving: new_cipher(receiving),
            local,
            remote,
            next: AtomicU64::new(0),
            window: Mutex::new(Window::new()),
        }
    }

    /// This node's index, which the peer's datagrams carry.
    pub fn index(&self) -> u32 {
        self.local
    }

    /// Packets that this node has sealed in the session.
    pub fn sealed(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Seals the packet that begins at byte 16 of the buffer, which is as long as the packet plus
    /// [`OVERHEAD`]. Fails once the session has sealed its maximum number of packets.
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
            .seal_in_place_separate_tag(counter_nonce(counter), Aad::empty(), packet)
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

    /// The session index in a data message; `None` if the datagram is too short or of another type.
    #[inline]
    #[must_use]
    pub fn index_in(datagram: &[u8]) -> Option<u32> {
        let (head, _) = DataHead::ref_from_prefix(datagram).ok()?;
        (head.kind == Kind::Data.word() && datagram.len() >= OVERHEAD).then(|| head.receiver.get())
    }

    /// Opens a datagram in place; then the packet with its padding is at the beginning. The length is in
    /// bytes, zero for a keepalive.
    ///
    /// Fails if the datagram is not authentic or was received before, or if the session is over. The buffer
    /// may then no longer contain the datagram.
    #[inline]
    pub fn open(&self, datagram: &mut [u8]) -> Result<usize, NoiseError> {
        let (head, _) = DataHead::ref_from_prefix(datagram).map_err(|_| NoiseError::Malformed)?;
        let counter = head.counter.get();
        if counter >= REJECT_AFTER {
            return Err(NoiseError::Exhausted);
        }
        let packet = self
            .receiving
            .open_within(counter_nonce(counter), Aad::empty(), datagram, HEAD..)
            .map_err(|_| NoiseError::Tag)?;
        let mut window = self.window.lock();
        if window.take(counter) { Ok(packet.len()) } else { Err(NoiseError::Replayed) }
    }
}

#[cfg(test)]
mod tests;
