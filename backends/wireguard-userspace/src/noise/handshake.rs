//! The handshake: Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, with one message in each direction.

use super::crypto::{
    KEY, Secret, TAG, compute_mac, derive_keys, hash_parts, open_once, seal_once, shared_secret,
};
use super::error::NoiseError;
use super::identity::{Identity, Remote};
use super::message::{Codes, Initiation, Kind, Response, Sealed};
use super::session::Session;
use super::stamp::Stamp;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// The prologue of the Noise handshake.
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

/// What both nodes compute from the same messages (Noise's symmetric state).
#[derive(Clone)]
pub(crate) struct Transcript {
    chain: Secret,
    hash: [u8; KEY],
}

impl Transcript {
    /// The state before the first message to a responder.
    pub(crate) fn new(prologue: &[u8], responder: &[u8; KEY]) -> Self {
        let chain = hash_parts(&[CONSTRUCTION]);
        let mut transcript =
            Self { chain: Zeroizing::new(chain), hash: hash_parts(&[&chain, prologue]) };
        transcript.add(responder);
        transcript
    }

    fn add(&mut self, said: &[u8]) {
        self.hash = hash_parts(&[&self.hash, said]);
    }

    fn agree(&mut self, secret: &[u8]) {
        let [chain] = derive_keys(&self.chain, secret);
        self.chain = chain;
    }

    /// Mixes a secret into the chaining key, and derives a key for the next sealed value.
    pub(crate) fn agree_key(&mut self, secret: &[u8]) -> Secret {
        let [chain, key] = derive_keys(&self.chain, secret);
        self.chain = chain;
        key
    }

    fn agree_preshared(&mut self, preshared: &[u8; KEY]) -> Secret {
        let [chain, said, key] = derive_keys(&self.chain, preshared);
        self.chain = chain;
        self.add(&*said);
        key
    }

    pub(crate) fn ephemeral(&mut self, public: &[u8; KEY]) {
        self.add(public);
        self.agree(public);
    }

    /// Under a single-use key.
    pub(crate) fn seal<const N: usize>(
        &mut self,
        key: &[u8; KEY],
        mut value: [u8; N],
    ) -> Result<Sealed<N>, NoiseError> {
        let tag = seal_once(key, &self.hash, &mut value)?;
        self.hash = hash_parts(&[&self.hash, &value, &tag]);
        Ok(Sealed { value, tag })
    }

    fn open<const N: usize>(
        &mut self,
        key: &[u8; KEY],
        sealed: &Sealed<N>,
    ) -> Result<[u8; N], NoiseError> {
        let mut sealed = Zeroizing::new([sealed.value.as_slice(), &sealed.tag].concat());
        let said = hash_parts(&[&self.hash, &sealed]);
        let value = open_once(key, &self.hash, &mut sealed)?;
        let value = (&*value).try_into().map_err(|_| NoiseError::Malformed)?;
        self.hash = said;
        Ok(value)
    }

    /// The keys of the two directions, the initiator's first.
    fn keys(&self) -> [Secret; 2] {
        derive_keys(&self.chain, &[])
    }
}

/// An initiation that awaits its response.
pub struct Initiated {
    ephemeral: StaticSecret,
    transcript: Transcript,
    index: u32,
}

/// `index` identifies the resulting session. `ephemeral` is 32 random bytes. [`PeerCookie`](super::PeerCookie) adds `mac2`
/// to the message. Fails if the peer's key has small order.
pub fn begin_handshake(
    identity: &Identity,
    remote: &Remote,
    index: u32,
    stamp: Stamp,
    ephemeral: &[u8; KEY],
) -> Result<(Initiated, Initiation), NoiseError> {
    let ephemeral = StaticSecret::from(*ephemeral);
    let public = PublicKey::from(&ephemeral).to_bytes();
    let mut transcript = Transcript::new(IDENTIFIER, &remote.public);
    transcript.ephemeral(&public);
    let key = transcript.agree_key(&*shared_secret(&ephemeral, &remote.public)?);
    let static_key = transcript.seal(&key, *identity.public())?;
    let key = transcript.agree_key(&*remote.shared);
    let stamp = transcript.seal(&key, stamp.0)?;
    let mut message = Initiation {
        kind: Kind::Initiation.word(),
        sender: index.into(),
        ephemeral: public,
        key: static_key,
        stamp,
        codes: Codes::default(),
    };
    message.codes.first = first_code(remote, message.bytes())?;
    let initiated = Initiated { ephemeral, transcript, index };
    Ok((initiated, message))
}

/// `mac1` of a message in which both authentication codes are still empty.
fn first_code(remote: &Remote, message: &[u8]) -> Result<[u8; TAG], NoiseError> {
    let (covered, ..) = Codes::of(message).ok_or(NoiseError::Malformed)?;
    Ok(compute_mac(&remote.labels.code, covered))
}

/// An initiation whose initiator is known but has not proved its identity yet.
pub struct UnprovenInitiation {
    transcript: Transcript,
    public: [u8; KEY],
    message: Initiation,
}

impl UnprovenInitiation {
    /// Decrypts the initiator's public key, with one curve operation. Fails if the message is not for this
    /// node, or its ephemeral key has small order.
    pub fn read(identity: &Identity, message: &Initiation) -> Result<Self, NoiseError> {
        let mut transcript = Transcript::new(IDENTIFIER, identity.public());
        transcript.ephemeral(&message.ephemeral);
        let key = transcript.agree_key(&*shared_secret(&identity.private, &message.ephemeral)?);
        let public = transcript.open(&key, &message.key)?;
        Ok(Self { transcript, public, message: message.clone() })
    }

    /// The initiator's public key. Any host can send any key; [`UnprovenInitiation::prove`] verifies that it has the
    /// private one.
    #[must_use]
    pub fn public(&self) -> &[u8; KEY] {
        &self.public
    }

    /// Verifies that the initiator is this peer. The time in the message has to be later than in all earlier
    /// initiations.
    pub fn prove(mut self, remote: &Remote) -> Result<(ProvenInitiation, Stamp), NoiseError> {
        if remote.public != self.public {
            return Err(NoiseError::Stranger);
        }
        let key = self.transcript.agree_key(&*remote.shared);
        let stamp = self.transcript.open(&key, &self.message.stamp)?;
        let asked = ProvenInitiation {
            transcript: self.transcript,
            public: self.public,
            ephemeral: self.message.ephemeral,
            index: self.message.sender.get(),
        };
        Ok((asked, Stamp(stamp)))
    }
}

/// An authentic initiation.
pub struct ProvenInitiation {
    transcript: Transcript,
    public: [u8; KEY],
    ephemeral: [u8; KEY],
    index: u32,
}

impl ProvenInitiation {
    /// A session with this index, and the response to the initiation. `ephemeral` is 32 random bytes. This
    /// node must not send packets in the session before it has received one.
    ///
    /// Fails if the ephemeral key of the initiation has small order.
    pub fn answer(
        self,
        remote: &Remote,
        preshared: &[u8; KEY],
        index: u32,
        ephemeral: &[u8; KEY],
    ) -> Result<(Session, Response), NoiseError> {
        let Self { mut transcript, public: initiator, ephemeral: asked, index: theirs } = self;
        let ephemeral = StaticSecret::from(*ephemeral);
        let public = PublicKey::from(&ephemeral).to_bytes();
        transcript.ephemeral(&public);
        transcript.agree(&*shared_secret(&ephemeral, &asked)?);
        transcript.agree(&*shared_secret(&ephemeral, &initiator)?);
        let key = transcript.agree_preshared(preshared);
        let empty = transcript.seal(&key, [])?.tag;
        let mut message = Response {
            kind: Kind::Response.word(),
            sender: index.into(),
            receiver: theirs.into(),
            ephemeral: public,
            empty,
            codes: Codes::default(),
        };
        message.codes.first = first_code(remote, message.bytes())?;
        let [receiving, sending] = transcript.keys();
        Ok((Session::new(&sending, &receiving, index, theirs), message))
    }
}

impl Initiated {
    /// The index of the future session.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Completes the handshake, with two curve operations. Fails if the message is not the peer's response to
    /// this initiation, or the preshared keys differ. After an error, the peer's response is still accepted.
    pub fn complete(
        &self,
        identity: &Identity,
        preshared: &[u8; KEY],
        message: &Response,
    ) -> Result<Session, NoiseError> {
        if message.receiver() != self.index {
            return Err(NoiseError::Unasked);
        }
        let mut transcript = self.transcript.clone();
        transcript.ephemeral(&message.ephemeral);
        transcript.agree(&*shared_secret(&self.ephemeral, &message.ephemeral)?);
        transcript.agree(&*shared_secret(&identity.private, &message.ephemeral)?);
        let key = transcript.agree_preshared(preshared);
        let empty = Sealed { value: [], tag: message.empty };
        transcript.open(&key, &empty)?;
        let [sending, receiving] = transcript.keys();
        Ok(Session::new(&sending, &receiving, self.index, message.sender.get()))
    }
}

#[cfg(test)]
mod tests;
