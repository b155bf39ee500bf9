//! Keys: secrets that nobody prints and that leave no copy behind, and which public keys no peer can have.

use boringtun::x25519;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// A public key, which names a peer.
pub type PublicKey = [u8; 32];

/// A private or preshared key. It is overwritten when it is dropped, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A secret of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret")
    }
}

/// The public key that belongs to a private one.
pub fn public_key(private: &Secret) -> PublicKey {
    *x25519::PublicKey::from(&x25519::StaticSecret::from(*private.bytes())).as_bytes()
}

/// The u coordinates of small order, in every encoding (<https://cr.yp.to/ecdh.html#validate>), without the ignored top bit. The shared secret
/// with such a key is zero: anyone could pretend to be that peer.
const SMALL_ORDER: [PublicKey; 7] = [
    [0; 32],
    number(1),
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1,
        0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e,
        0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57,
    ],
    prime(0xec),
    prime(0xed),
    prime(0xee),
];

const fn number(low: u8) -> PublicKey {
    let mut key = [0; 32];
    key[0] = low;
    key
}

/// 2^255 - 19 with another lowest byte.
const fn prime(low: u8) -> PublicKey {
    let mut key = [0xff; 32];
    key[0] = low;
    key[31] = 0x7f;
    key
}

/// Whether a key is of small order.
pub(super) fn is_weak(key: &PublicKey) -> bool {
    let mut key = *key;
    key[31] &= 0x7f;
    SMALL_ORDER.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_small_order_shares_no_secret() {
        let ours = x25519::StaticSecret::from([7; 32]);
        for key in SMALL_ORDER {
            for top in [0, 0x80] {
                let mut key = key;
                key[31] |= top;
                assert!(is_weak(&key));
                assert!(!ours.diffie_hellman(&x25519::PublicKey::from(key)).was_contributory(), "{key:02x?}");
            }
        }
        let good = public_key(&Secret::new([9; 32]));
        assert!(!is_weak(&good) && ours.diffie_hellman(&x25519::PublicKey::from(good)).was_contributory());
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new([0x41; 32])), "Secret");
    }
}
