//! WireGuard keys. Secrets never appear in output, and a dropped secret is erased from memory.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use rand::TryRngCore;
use std::fmt;
use std::sync::Arc;
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

/// Names the file of the private key, as in Go flannel.
pub const KEY_VARIABLE: &str = "WIREGUARD_KEY_FILE";
/// Names the file of the preshared key.
pub const PRESHARED_VARIABLE: &str = "WIREGUARD_PSK_FILE";

/// In bytes.
pub const KEY: usize = 32;

/// Like Go's decoder, it ignores the bits after the last byte.
const AS_GO: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// Points of small order on Curve25519 (RFC 7748, 6.1). A shared secret from one of them is predictable.
const SMALL_ORDER: [[u8; KEY]; 7] = [
    [0; KEY],
    point(1, 0, 0),
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef,
        0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f,
        0x11, 0x57,
    ],
    point(0xec, 0xff, 0x7f),
    point(0xed, 0xff, 0x7f),
    point(0xee, 0xff, 0x7f),
];

/// By its first byte, its last byte and all bytes between. The last three points of small order are around the prime, 2^255 - 19.
const fn point(first: u8, between: u8, last: u8) -> [u8; KEY] {
    let mut point = [between; KEY];
    point[0] = first;
    point[KEY - 1] = last;
    point
}

/// Decodes 32 bytes as Go's `base64.StdEncoding` does, which skips line breaks.
fn decode(text: &str) -> Option<Zeroizing<[u8; KEY]>> {
    let joined: Zeroizing<Vec<u8>> =
        Zeroizing::new(text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect());
    // 32 bytes are encoded as 44 characters.
    let bytes = Zeroizing::new(AS_GO.decode(joined.get(..joined.len().min(64))?).ok()?);
    Some(Zeroizing::new(bytes.as_slice().try_into().ok()?))
}

fn clamp(bytes: &mut [u8; KEY]) {
    let [first, .., last] = bytes;
    *first &= 0xf8;
    *last = *last & 0x7f | 0x40;
}

/// It identifies a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; KEY]);

impl PublicKey {
    /// Parses base64 as Go does.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        decode(text).map(|bytes| Self(*bytes))
    }

    /// False for a point of small order, because the resulting shared secret is predictable.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let mut point = self.0;
        // The highest bit is ignored (RFC 7748, 5).
        point[KEY - 1] &= 0x7f;
        !SMALL_ORDER.contains(&point)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A private key or a preshared key. Clones share its memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<[u8; KEY]>>);

impl Secret {
    #[must_use]
    pub fn new(bytes: [u8; KEY]) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// Parses base64 as Go does.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        decode(text).map(|bytes| Self(Arc::new(bytes)))
    }

    /// A private key from the kernel's random numbers.
    pub fn generate() -> Result<Self, rand::rand_core::OsError> {
        let mut bytes = Zeroizing::new([0; KEY]);
        rand::rngs::OsRng.try_fill_bytes(bytes.as_mut_slice())?;
        // Clamp the key as `wg genkey` and Go do.
        clamp(&mut bytes);
        Ok(Self(Arc::new(bytes)))
    }

    /// As the kernel stores it (RFC 7748, 5): the same key, but with fixed values in the ignored bits.
    #[must_use]
    pub fn clamped(&self) -> Self {
        let mut bytes = Zeroizing::new(*self.bytes());
        clamp(&mut bytes);
        Self(Arc::new(bytes))
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8; KEY] {
        &self.0
    }

    /// In base64, for a file.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.bytes()))
    }

    #[must_use]
    pub fn public(&self) -> PublicKey {
        let secret = StaticSecret::from(*self.bytes());
        PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_gos_spellings() {
        let text = "oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3k=";
        let key = PublicKey::parse(text).unwrap();
        assert_eq!(key.to_string(), text);
        // The last character before the padding has two ignored bits, and Go skips line breaks anywhere.
        for same in [
            "oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3l=",
            "oLXChGgxUhtFKhIW7Nn2S9+b\r\nFai5u2s1lbeCLqZnt3k=\n",
        ] {
            assert_eq!(PublicKey::parse(same), Some(key), "{same}");
        }
        for bad in [
            "",
            "oLXC",
            "oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3k",
            " oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3k=",
            &"A".repeat(1 << 20),
            "ä",
        ] {
            assert_eq!(PublicKey::parse(bad), None, "{bad:.50}");
        }
    }

    #[test]
    fn points_of_small_order_are_refused() {
        assert!(Secret::new([9; KEY]).public().is_usable());
        let secret = StaticSecret::from([7; KEY]);
        let is_safe = |point: [u8; KEY]| secret.diffie_hellman(&point.into()).was_contributory();
        for mut point in SMALL_ORDER {
            assert!(!PublicKey(point).is_usable() && !is_safe(point), "{point:x?}");
            point[KEY - 1] |= 0x80;
            assert!(!PublicKey(point).is_usable() && !is_safe(point), "{point:x?}");
            point[5] ^= 1;
            assert!(PublicKey(point).is_usable() && is_safe(point), "{point:x?}");
        }
        assert!(Secret::generate().unwrap().public().is_usable());
    }

    #[test]
    fn secrets_are_shown_nowhere() {
        let secret = Secret::generate().unwrap();
        let shown = format!("{secret:?} {:?}", Some(secret.clone()));
        assert!(shown.contains("(hidden)") && !shown.contains(&*secret.text()), "{shown}");
        assert_eq!(Secret::parse(&secret.text()), Some(secret));
        // A key generated without clamping, by a tool other than WireGuard's, has the same public key.
        let loose = Secret::new([0xff; KEY]);
        assert!(
            loose.clamped() != loose
                && loose.clamped().public() == loose.public()
                && loose.clamped().clamped() == loose.clamped()
        );
    }
}
