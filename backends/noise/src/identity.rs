//! The keys of this node and of its peers, and what follows from them once for all handshakes.

use crate::crypto::{KEY, Secret, TAG, hash, mac, shared};
use crate::error::Refused;
use crate::message::Codes;
use subtle::ConstantTimeEq;
use x25519_dalek::{PublicKey, StaticSecret};

/// Keys that follow from a public key: of the first authentication code in messages to its owner, and of the cookies that its owner makes.
pub(crate) struct Labels {
    pub(crate) code: [u8; KEY],
    pub(crate) cookie: [u8; KEY],
}

impl Labels {
    fn of(public: &[u8; KEY]) -> Self {
        Self {
            code: hash(&[b"mac1----", public]),
            cookie: hash(&[b"cookie--", public]),
        }
    }
}

/// The private key of this node.
pub struct Identity {
    pub(crate) private: StaticSecret,
    public: [u8; KEY],
    pub(crate) labels: Labels,
}

impl Identity {
    /// The identity of a private key, which is clamped as X25519 has it (RFC 7748).
    pub fn new(private: &[u8; KEY]) -> Self {
        let private = StaticSecret::from(*private);
        let public = PublicKey::from(&private).to_bytes();
        Self {
            private,
            public,
            labels: Labels::of(&public),
        }
    }

    /// The public key.
    pub fn public(&self) -> &[u8; KEY] {
        &self.public
    }

    /// Whether a handshake message is meant for this node: its first code is right. It takes two hashes, no curve operation.
    pub fn is_addressed(&self, message: &[u8]) -> bool {
        Codes::of(message).is_some_and(|(covered, _, codes)| {
            let right: [u8; TAG] = mac(&self.labels.code, covered);
            bool::from(right.ct_eq(&codes.first))
        })
    }
}

/// A peer's public key, and what follows from it and ours.
pub struct Remote {
    pub(crate) public: [u8; KEY],
    /// The shared secret of both static keys.
    pub(crate) shared: Secret,
    pub(crate) labels: Labels,
}

impl Remote {
    /// A peer of this node. This takes a curve operation, which each handshake is spared.
    ///
    /// # Errors
    /// The public key has small order.
    pub fn new(identity: &Identity, public: &[u8; KEY]) -> Result<Self, Refused> {
        Ok(Self {
            public: *public,
            shared: shared(&identity.private, public)?,
            labels: Labels::of(public),
        })
    }
}
