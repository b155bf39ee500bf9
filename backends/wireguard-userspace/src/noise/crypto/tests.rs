//! Public keys that give no secret. The handshake tests compare all other functions with known messages.

use super::*;
use crate::noise::tests::parse_hex_array;

/// An all-zero shared secret is refused (RFC 7748, section 6.1).
#[test]
fn public_key_of_small_order_is_refused() {
    let private = StaticSecret::from([7; KEY]);
    for public in [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ] {
        assert_eq!(shared_secret(&private, &parse_hex_array(public)), Err(NoiseError::WeakKey));
    }
}
