//! Reasons why the receiver rejects a message.

use std::fmt;

/// Reason why the receiver rejects a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Message that is too short, or message of an unexpected type.
    Malformed,
    /// Invalid tag of the message: another key sealed the message, or the message changed in transit.
    Tag,
    /// Message whose static or ephemeral public key is a point of small order, so that the shared secret would be publicly known.
    WeakKey,
    /// Initiator whose public key belongs to no peer.
    Stranger,
    /// Message that this node received before, or message so old that this node cannot distinguish the message from a copy.
    Replayed,
    /// Session that has sealed or opened its maximum number of packets.
    Exhausted,
    /// Message that replies to no message of this node.
    Unasked,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Malformed => "not a message of the protocol",
            Refused::Tag => "invalid authentication tag",
            Refused::WeakKey => "key of small order",
            Refused::Stranger => "the initiator is not a peer",
            Refused::Replayed => "received before",
            Refused::Exhausted => "the session has reached its packet limit",
            Refused::Unasked => "reply to a message that this node did not send",
        })
    }
}

impl std::error::Error for Refused {}
