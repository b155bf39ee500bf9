use thiserror::Error;

/// Why the receiver rejects a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NoiseError {
    #[error("not a message of the protocol")]
    Malformed,
    /// Another key sealed the message, or it changed in transit.
    #[error("invalid authentication tag")]
    Tag,
    /// The shared secret with a point of small order would be publicly known.
    #[error("key of small order")]
    WeakKey,
    #[error("the initiator is not a peer")]
    Stranger,
    /// Or so old that it may be a copy.
    #[error("received before")]
    Replayed,
    #[error("the session has reached its packet limit")]
    Exhausted,
    #[error("reply to a message that this node did not send")]
    Unasked,
}
