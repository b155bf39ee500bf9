//! The cryptographic functions of the protocol: Curve25519, BLAKE2s, HKDF and ChaCha20-Poly1305.

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac};
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::SimpleHmac;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::error::NoiseError;

/// In bytes.
pub const KEY: usize = 32;
/// In bytes.
pub(crate) const TAG: usize = 16;
/// The input block of BLAKE2s in bytes.
const BLOCK: usize = 64;

/// Erased on drop.
pub(crate) type Secret = Zeroizing<[u8; KEY]>;

/// BLAKE2s (RFC 7693) of the concatenated parts.
pub(crate) fn hash_parts(parts: &[&[u8]]) -> [u8; KEY] {
    let mut hash = Blake2s256::default();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize_fixed().into()
}

/// Keyed BLAKE2s of 16 bytes.
#[allow(
    clippy::expect_used,
    reason = "the longest key that BLAKE2s takes has 32 bytes, and N is 16 or 32"
)]
pub(crate) fn compute_mac<const N: usize>(key: &[u8; N], data: &[u8]) -> [u8; TAG] {
    const { assert!(N <= KEY) };
    let mut mac = Blake2sMac::<U16>::new_from_slice(key).expect("a key of at most 32 bytes");
    mac.update(data);
    mac.finalize_fixed().into()
}

/// RFC 2104, with BLAKE2s of the concatenated parts.
fn compute_hmac(key: &[u8; KEY], parts: &[&[u8]]) -> Secret {
    let mut block = Zeroizing::new([0; BLOCK]);
    block.iter_mut().zip(key).for_each(|(byte, own)| *byte = *own);
    let mut mac = <SimpleHmac<Blake2s256> as KeyInit>::new((&*block).into());
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize_fixed().into())
}

/// Derives `N` keys of 32 bytes with HKDF (RFC 5869), as Noise defines it.
pub(crate) fn derive_keys<const N: usize>(chain: &[u8; KEY], input: &[u8]) -> [Secret; N] {
    let secret = compute_hmac(chain, &[input]);
    let mut before: Option<Secret> = None;
    let mut number = 0_u8;
    [(); N].map(|()| {
        number += 1;
        let parts: [&[u8]; 2] = [before.as_deref().map_or(&[], |key| key.as_slice()), &[number]];
        let key = compute_hmac(&secret, &parts);
        before = Some(key.clone());
        key
    })
}

/// Fails if the public key has small order.
pub(crate) fn shared_secret(
    private: &StaticSecret,
    public: &[u8; KEY],
) -> Result<Secret, NoiseError> {
    let secret = private.diffie_hellman(&PublicKey::from(*public));
    if secret.was_contributory() {
        Ok(Zeroizing::new(*secret.as_bytes()))
    } else {
        Err(NoiseError::WeakKey)
    }
}

/// ChaCha20-Poly1305 (RFC 8439).
#[allow(clippy::expect_used, reason = "a key of this algorithm has 32 bytes, as the type ensures")]
pub(crate) fn new_cipher(key: &[u8; KEY]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("a key of 32 bytes"))
}

/// Four zero bytes, and the counter in little-endian order.
pub(crate) fn counter_nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes.iter_mut().skip(4).zip(counter.to_le_bytes()).for_each(|(byte, own)| *byte = own);
    Nonce::assume_unique_for_key(bytes)
}

/// Seals data in place under a single-use key, and returns the tag.
pub(crate) fn seal_once(
    key: &[u8; KEY],
    also: &[u8],
    data: &mut [u8],
) -> Result<[u8; TAG], NoiseError> {
    let tag = new_cipher(key)
        .seal_in_place_separate_tag(counter_nonce(0), Aad::from(also), data)
        .map_err(|_| NoiseError::Malformed)?;
    tag.as_ref().try_into().map_err(|_| NoiseError::Malformed)
}

/// Opens in place what [`seal_once`] sealed; the tag follows the data.
pub(crate) fn open_once<'d>(
    key: &[u8; KEY],
    also: &[u8],
    sealed: &'d mut [u8],
) -> Result<&'d mut [u8], NoiseError> {
    new_cipher(key)
        .open_in_place(counter_nonce(0), Aad::from(also), sealed)
        .map_err(|_| NoiseError::Tag)
}

/// Seals a cookie in place with XChaCha20-Poly1305, and returns the tag.
pub(crate) fn seal_cookie(
    key: &[u8; KEY],
    nonce: &[u8; 24],
    also: &[u8],
    cookie: &mut [u8; TAG],
) -> Result<[u8; TAG], NoiseError> {
    XChaCha20Poly1305::new(key.into())
        .encrypt_in_place_detached(XNonce::from_slice(nonce), also, cookie)
        .map(Into::into)
        .map_err(|_| NoiseError::Malformed)
}

pub(crate) fn open_cookie(
    key: &[u8; KEY],
    nonce: &[u8; 24],
    also: &[u8],
    cookie: &mut [u8; TAG],
    tag: &[u8; TAG],
) -> Result<(), NoiseError> {
    XChaCha20Poly1305::new(key.into())
        .decrypt_in_place_detached(XNonce::from_slice(nonce), also, cookie, tag.into())
        .map_err(|_| NoiseError::Tag)
}

#[cfg(test)]
mod tests;
