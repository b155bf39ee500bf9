//! Tests of the cryptographic functions against known results.

use super::*;
use crate::tests::{array, bytes};

/// RFC 7748, section 5.2.
#[test]
fn shared_secret_is_that_of_rfc_7748() {
    for (private, public, secret) in [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ] {
        let private = StaticSecret::from(array(private));
        assert_eq!(*shared(&private, &array(public)).unwrap(), array(secret));
    }
}

/// The key exchange refuses an all-zero shared secret, as RFC 7748, section 6.1, describes.
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
        assert_eq!(shared(&private, &array(public)), Err(Refused::WeakKey));
    }
}

/// The hashes equal the example of RFC 7693, appendix B, and the keyed hashes equal the results of Python's hashlib.
#[test]
fn hashes_are_blake2s() {
    assert_eq!(
        hash(&[b"a", b"bc"]),
        array("508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982")
    );
    let key: [u8; KEY] = std::array::from_fn(|byte| byte as u8);
    assert_eq!(
        mac(&key, &[0, 1, 2]),
        array("1e2a79436a7796a3e9826bfedf07659f")
    );
    let short: [u8; TAG] = std::array::from_fn(|byte| byte as u8);
    assert_eq!(mac(&short, &[]), array("af4e5d3bb230e9ff9096ca6f7c501f76"));
}

/// The derived keys equal the results of HKDF with Python's hmac and hashlib.
#[test]
fn derived_keys_are_those_of_hkdf() {
    let chain = std::array::from_fn(|byte| byte as u8);
    let keys: [Secret; 3] = derive(&chain, b"input");
    let expected = [
        "87b7f70b24183c6db5dc4f6d9f4c47cdb203321aa2a0bef714896adb3107a040",
        "538a02e1eb2e31b7e4d4b82476d1fe2acf50085d3fb584537279195f5d1f5824",
        "9ad858025593be88de0f9442a589cfe84a88dc19e4753d93684d1c5efc4837f9",
    ];
    assert_eq!(keys.map(|key| *key), expected.map(array));
}

/// The cipher reproduces the example of RFC 8439, appendix A.5, whose nonce is four zero bytes and a counter.
#[test]
fn cipher_is_that_of_rfc_8439() {
    let key = array("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0");
    let also = bytes("f33388860000000000004e91");
    let plain = "Internet-Drafts are draft documents valid for a maximum of six months and may be updated, replaced, or obsoleted by other documents at any \
                 time. It is inappropriate to use Internet-Drafts as reference material or to cite them other than as /“work in progress./”";
    let mut data = plain.as_bytes().to_vec();
    let tag = cipher(&key)
        .seal_in_place_separate_tag(nonce(0x0807_0605_0403_0201), Aad::from(&also), &mut data)
        .unwrap();
    assert_eq!(data[..8], bytes("64a0861575861af4"));
    assert_eq!(tag.as_ref(), bytes("eead9d67890cbb22392336fea1851f38"));
}

#[test]
fn what_was_changed_does_not_open() {
    let key = [3; KEY];
    let mut plain = *b"sixteen bytes...";
    let tag = seal_once(&key, b"also", &mut plain).unwrap();
    let sealed = [plain.as_slice(), &tag].concat();
    assert_eq!(
        open_once(&key, b"also", &mut sealed.clone()).unwrap(),
        b"sixteen bytes..."
    );
    for at in 0..sealed.len() {
        let mut other = sealed.clone();
        other[at] ^= 0x40;
        assert_eq!(
            open_once(&key, b"also", &mut other),
            Err(Refused::Tag),
            "byte {at}"
        );
    }
    assert_eq!(
        open_once(&key, b"Also", &mut sealed.clone()),
        Err(Refused::Tag)
    );
    let (mut cookie, nonce) = (*b"a cookie, 16 B..", [9; 24]);
    let tag = seal_cookie(&key, &nonce, b"also", &mut cookie).unwrap();
    let mut other = cookie;
    assert_eq!(
        open_cookie(&key, &nonce, b"Also", &mut other, &tag),
        Err(Refused::Tag)
    );
    open_cookie(&key, &nonce, b"also", &mut cookie, &tag).unwrap();
    assert_eq!(&cookie, b"a cookie, 16 B..");
}
