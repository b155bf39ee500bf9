//! Keys of this node and of its peers, and what is derived from them once for all handshakes.

use super::crypto::{KEY, Secret, TAG, compute_mac, hash_parts, shared_secret};
use super::error::NoiseError;
use super::message::Codes;
use subtle::ConstantTimeEq;
use x25519_dalek::{PublicKey, StaticSecret};

/// Keys derived from a public key. Senders use `code` for `mac1` in messages to its owner, who encrypts
/// cookies with `cookie`.
pub(crate) struct Labels {
    pub(crate) code: [u8; KEY],
    pub(crate) cookie: [u8; KEY],
}

impl Labels {
    fn of(public: &[u8; KEY]) -> Self {
        Self {
            code: hash_parts(&[b"mac1----", public]),
            cookie: hash_parts(&[b"cookie--", public]),
        }
    }
}

/// The private key of this node, and what is derived from it.
pub struct Identity {
    pub(crate) private: StaticSecret,
    public: [u8; KEY],
    pub(crate) labels: Labels,
}

impl Identity {
    /// First clamps the key as X25519 requires (RFC 7748).
    #[must_use]
    pub fn new(private: &[u8; KEY]) -> Self {
        let private = StaticSecret::from(*private);
        let public = PublicKey::from(&private).to_bytes();
        Self { private, public, labels: Labels::of(&public) }
    }

    #[must_use]
    pub fn public(&self) -> &[u8; KEY] {
        &self.public
    }

    /// Whether `mac1` is correct, so that the message is for this node. This takes two hashes and no curve
    /// operation.
    #[must_use]
    pub fn is_addressed(&self, message: &[u8]) -> bool {
        Codes::of(message).is_some_and(|(covered, _, codes)| {
            let right: [u8; TAG] = compute_mac(&self.labels.code, covered);
            bool::from(right.ct_eq(&codes.first))
        })
    }
}

/// A peer's public key, and what is derived from it and this node's keys.
pub struct Remote {
    pub(crate) public: [u8; KEY],
    /// The shared secret of both static keys.
    pub(crate) shared: Secret,
    pub(crate) labels: Labels,
}

impl Remote {
    /// One curve operation here saves one in each handshake. Fails if the public key has small order.
    pub fn new(identity: &Identity, public: &[u8; KEY]) -> Result<Self, NoiseError> {
        Ok(Self {
            public: *public,
            shared: shared_secret(&identity.private, public)?,
            labels: Labels::of(public),
        })
    }
}
