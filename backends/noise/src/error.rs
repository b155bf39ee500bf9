//! Reasons why a message is rejected.

use std::fmt;

/// Reason why the receiver rejects a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The message is too short, or of another kind.
    Malformed,
    /// The tag of the message is invalid: another key sealed the message, or the message changed in transit.
    Tag,
    /// The message's static or ephemeral public key is a point of small order, so the shared secret would be publicly known.
    WeakKey,
    /// The initiator is not a peer.
    Stranger,
    /// This node received the message before, or the message is too old to be distinguished from a copy.
    Replayed,
    /// The session has sealed or opened its maximum number of packets.
    Exhausted,
    /// The message replies to no message of this node.
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
