//! The messages of the protocol, as on the wire (section 5.4 of the paper).

use super::crypto::{KEY, TAG};
use super::stamp::STAMP;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first byte of a message; three reserved bytes follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Requests a session.
    Initiation = 1,
    /// Replies to an initiation.
    Response = 2,
    /// Requests that a sender first proves its address.
    CookieReply = 3,
    /// Carries a packet.
    Data = 4,
}

impl Kind {
    pub(crate) fn word(self) -> U32 {
        U32::new(self as u32)
    }
}

/// The two authentication codes at the end of a handshake message.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(unreachable_pub, reason = "derived impls of public messages name this type")]
pub struct Codes {
    /// `mac1`, with a key from the receiver's public key: the sender knows this public key.
    pub(crate) first: [u8; TAG],
    /// `mac2`, with a cookie as its key: the sender receives packets at its address. Zero without a cookie.
    pub(crate) second: [u8; TAG],
}

impl Codes {
    /// The bytes that `mac1` covers, the bytes that `mac2` covers, and the codes at the end of a message.
    pub(crate) fn of(message: &[u8]) -> Option<(&[u8], &[u8], &Self)> {
        let (covered, codes) = Self::ref_from_suffix(message).ok()?;
        let by_second = message.get(..message.len() - TAG)?;
        Some((covered, by_second, codes))
    }
}

/// Requests a session; carries the initiator's public key and the time.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Initiation {
    pub(crate) kind: U32,
    pub(crate) sender: U32,
    pub(crate) ephemeral: [u8; KEY],
    pub(crate) key: Sealed<KEY>,
    pub(crate) stamp: Sealed<STAMP>,
    pub(crate) codes: Codes,
}

/// Replies to an initiation.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Response {
    pub(crate) kind: U32,
    pub(crate) sender: U32,
    pub(crate) receiver: U32,
    pub(crate) ephemeral: [u8; KEY],
    pub(crate) empty: [u8; TAG],
    pub(crate) codes: Codes,
}

/// Requests that the sender of a handshake message proves its address.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CookieReply {
    pub(crate) kind: U32,
    pub(crate) receiver: U32,
    pub(crate) nonce: [u8; 24],
    pub(crate) cookie: Sealed<TAG>,
}

/// The header before a sealed packet.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DataHead {
    pub(crate) kind: U32,
    pub(crate) receiver: U32,
    pub(crate) counter: U64,
}

/// A sealed value and its tag.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(unreachable_pub, reason = "derived impls of public messages name this type")]
pub struct Sealed<const N: usize> {
    pub(crate) value: [u8; N],
    pub(crate) tag: [u8; TAG],
}

/// Implements the reading of a message with a fixed length.
macro_rules! read {
    ($message:ident) => {
        impl $message {
            /// In bytes.
            pub const LENGTH: usize = size_of::<Self>();

            /// `None` if the datagram's message type or length does not match.
            pub fn read(datagram: &[u8]) -> Option<&Self> {
                Self::ref_from_bytes(datagram)
                    .ok()
                    .filter(|message| message.kind == Kind::$message.word())
            }

            pub fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }
        }
    };
}

read!(Initiation);
read!(Response);
read!(CookieReply);

impl Initiation {
    /// The index that the initiator expects in the response.
    #[must_use]
    pub fn sender(&self) -> u32 {
        self.sender.get()
    }
}

impl Response {
    /// The index of the initiation to which this replies.
    #[must_use]
    pub fn receiver(&self) -> u32 {
        self.receiver.get()
    }
}

impl CookieReply {
    /// The sender's index in the message to which this replies.
    #[must_use]
    pub fn receiver(&self) -> u32 {
        self.receiver.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_in_the_paper() {
        let lengths =
            [Initiation::LENGTH, Response::LENGTH, CookieReply::LENGTH, size_of::<DataHead>()];
        assert_eq!(lengths, [148, 92, 64, 16]);
    }

    #[test]
    fn datagram_of_another_kind_or_length_is_no_message() {
        let mut datagram = [0; 149];
        datagram[0] = 1;
        assert!(Initiation::read(&datagram[..148]).is_some());
        assert!(Initiation::read(&datagram).is_none());
        assert!(Initiation::read(&datagram[..147]).is_none());
        assert!(Response::read(&datagram[..92]).is_none());
        // The reserved bytes are zero.
        datagram[3] = 1;
        assert!(Initiation::read(&datagram[..148]).is_none());
    }
}
