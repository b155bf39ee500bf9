//! Reasons why a message is rejected.

use std::fmt;

/// Reason why a message is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It is too short, or of another kind.
    Malformed,
    /// The tag of the message is invalid: another key sealed the message, or the message was changed on the way.
    Tag,
    /// Its static or ephemeral public key is a point of small order. The shared secret would be publicly known.
    WeakKey,
    /// The initiator is not a peer.
    Stranger,
    /// It was received before, or it is too old to be distinguished from a copy.
    Replayed,
    /// The session has sealed or opened as many packets as it may.
    Exhausted,
    /// It replies to none of our messages.
    Unasked,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Malformed => "no message of the protocol",
            Refused::Tag => "wrong authentication tag",
            Refused::WeakKey => "key of small order",
            Refused::Stranger => "the initiator is not a peer",
            Refused::Replayed => "received before",
            Refused::Exhausted => "session has carried as many packets as it may",
            Refused::Unasked => "answer to no message of ours",
        })
    }
}

impl std::error::Error for Refused {}
