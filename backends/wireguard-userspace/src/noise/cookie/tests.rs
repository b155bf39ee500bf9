//! Cookies, which prove the addresses of senders.

use super::*;
use crate::noise::tests::{Pair, counting_key, later_stamp, peer_cookie};
use crate::noise::{Initiated, begin_handshake};
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use std::sync::Arc;

const HERE: &str = "192.0.2.7:51820";

fn sender_address() -> SocketAddr {
    HERE.parse().unwrap()
}

fn begin_with_cookie(
    pair: &Pair,
    peer_cookie: &mut PeerCookie,
    now: Instant,
) -> (Initiated, Initiation) {
    let (initiated, mut message) =
        begin_handshake(&pair.a, &pair.to_b, 7, later_stamp(), &counting_key(65)).unwrap();
    peer_cookie.prove(&mut message, now);
    (initiated, message)
}

#[test]
fn cookie_proves_an_address_and_port_for_two_minutes() {
    let (pair, (mut peer_cookie, now)) = (Pair::new(), peer_cookie());
    let checker = CookieChecker::new(counting_key(1), now);
    let (_, first) = begin_with_cookie(&pair, &mut peer_cookie, now);
    assert!(!checker.is_proven(sender_address(), first.bytes(), now));
    let reply = checker.reply(&pair.b, sender_address(), first.bytes(), [5; 24]).unwrap();
    assert_eq!(reply.receiver(), 7);
    peer_cookie.keep(&pair.to_b, &reply, now).unwrap();

    let (_, second) = begin_with_cookie(&pair, &mut peer_cookie, now);
    let proven = |from: &str, at| checker.is_proven(from.parse().unwrap(), second.bytes(), at);
    assert!(proven(HERE, now));
    // Another host behind the same address, and another address.
    assert!(!proven("192.0.2.7:51821", now));
    assert!(!proven("192.0.2.8:51820", now));
    assert!(!proven("[::ffff:192.0.2.7]:51820", now));
    let late = now + LASTS;
    assert!(checker.is_stale(late) && !proven(HERE, late));
    assert!(proven(HERE, late - Duration::from_millis(1)));
    // The receiver of a cookie stops using it a little earlier.
    let (_, third) = begin_with_cookie(&pair, &mut peer_cookie, now + LASTS - MARGIN);
    assert_eq!(third.codes.second, [0; TAG]);
    // A new secret invalidates all cookies.
    assert!(!CookieChecker::new(counting_key(2), now).is_proven(
        sender_address(),
        second.bytes(),
        now
    ));
}

#[test]
fn cookie_that_answers_nothing_is_refused() {
    let (pair, (mut peer_cookie, now)) = (Pair::new(), peer_cookie());
    let checker = CookieChecker::new(counting_key(1), now);
    let (_, first) = begin_with_cookie(&pair, &mut peer_cookie, now);
    let reply = checker.reply(&pair.b, sender_address(), first.bytes(), [5; 24]).unwrap();
    // The reply to the message of another peer_cookie, and the reply of another node.
    let mut others = PeerCookie::default();
    assert_eq!(others.keep(&pair.to_b, &reply, now), Err(NoiseError::Unasked));
    let foreign = checker.reply(&pair.a, sender_address(), first.bytes(), [5; 24]).unwrap();
    assert_eq!(peer_cookie.keep(&pair.to_b, &foreign, now), Err(NoiseError::Tag));
    peer_cookie.keep(&pair.to_b, &reply, now).unwrap();
    // A copy of the reply.
    assert_eq!(peer_cookie.keep(&pair.to_b, &reply, now), Err(NoiseError::Unasked));
    assert_eq!(
        checker.reply(&pair.b, sender_address(), &[4; 148], [5; 24]).err(),
        Some(NoiseError::Malformed)
    );
}

/// boringtun requests a proof of this node's address and accepts it.
#[test]
fn the_other_implementation_takes_our_proof() {
    let (pair, (mut peer_cookie, now)) = (Pair::new(), peer_cookie());
    let private = boringtun::x25519::StaticSecret::from(counting_key(33));
    let public = boringtun::x25519::PublicKey::from(&private);
    // It asks every sender for a proof.
    let limiter = Arc::new(RateLimiter::new(&public, 0));
    let peer = boringtun::x25519::PublicKey::from(*pair.a.public());
    let mut theirs = Tunn::new(private, peer, None, None, 5, Some(limiter));
    let mut room = [0; 256];
    let (_, first) = begin_with_cookie(&pair, &mut peer_cookie, now);
    let from = Some(sender_address().ip());
    let reply = match theirs.decapsulate(from, first.bytes(), &mut room) {
        TunnResult::WriteToNetwork(reply) => CookieReply::read(reply).unwrap().clone(),
        other => panic!("{other:?}"),
    };
    peer_cookie.keep(&pair.to_b, &reply, now).unwrap();
    let (initiated, second) = begin_with_cookie(&pair, &mut peer_cookie, now);
    match theirs.decapsulate(from, second.bytes(), &mut room) {
        TunnResult::WriteToNetwork(answer) => {
            let answer = Response::read(answer).unwrap();
            initiated.complete(&pair.a, &[0; KEY], answer).unwrap();
        }
        other => panic!("{other:?}"),
    }
}

/// This crate requests a proof of the boringtun peer's address and accepts it.
#[test]
fn the_other_implementation_proves_its_address() {
    let (pair, (_, now)) = (Pair::new(), peer_cookie());
    let checker = CookieChecker::new(counting_key(1), now);
    let private = boringtun::x25519::StaticSecret::from(counting_key(1));
    let peer = boringtun::x25519::PublicKey::from(*pair.b.public());
    let mut theirs = Tunn::new(private, peer, None, None, 5, None);
    let mut room = [0; 256];
    let initiation =
        |theirs: &mut Tunn, room: &mut [u8]| match theirs.format_handshake_initiation(room, true) {
            TunnResult::WriteToNetwork(message) => message.to_vec(),
            other => panic!("{other:?}"),
        };
    let first = initiation(&mut theirs, &mut room);
    assert!(!checker.is_proven(sender_address(), &first, now));
    let reply = checker.reply(&pair.b, sender_address(), &first, [5; 24]).unwrap();
    assert!(matches!(theirs.decapsulate(None, reply.bytes(), &mut room), TunnResult::Done));
    let second = initiation(&mut theirs, &mut room);
    assert!(checker.is_proven(sender_address(), &second, now));
}
