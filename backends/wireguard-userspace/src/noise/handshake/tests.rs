//! Known messages, and handshakes with boringtun as initiator and as responder.

use super::*;
use crate::noise::tests::{Pair, counting_key, later_stamp, open_datagram, parse_hex, seal_packet};
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use std::sync::Arc;
use std::time::SystemTime;

/// The keys are consecutive bytes. A Python program with the paper's formulas (hashlib and cryptography) made
/// the expected messages.
#[test]
fn messages_are_those_of_the_paper() {
    let initiation = parse_hex(
        "010000004433221164b101b1d0be5a8704bd078f9895001fc03e8e9f9522f188dd128d9846d48466158a0e4ca242d151 \
         ca97ab90159a98b67e616625e68b4065d357376b6598e644ad7d678c0295d22de4cb43d5135581ed36346bfa7cf42a3d \
         1a39f893750139bfa81f88ecf1a3efd3a6e0aa57304656f464ef0cdbd4e460d6032e87d8000000000000000000000000 \
         00000000",
    );
    let response = parse_hex(
        "020000008877665544332211244fe3b963e899dd295baffce248d3530f3a9a7479ba063002680ebfe7adad496ad1e50a \
         29587c01f5c6f0ef5342444a8df1e758a46c79f4725e9005bb9d34ed00000000000000000000000000000000",
    );
    let data = parse_hex(
        "04000000887766550000000000000000a9e602cfcec8e31fa7e389d26058f77e1433e66e589756ba3a3ab8beda5889cd",
    );
    let pair = Pair::new();
    let (initiated, message) =
        begin_handshake(&pair.a, &pair.to_b, 0x1122_3344, later_stamp(), &counting_key(65))
            .unwrap();
    assert_eq!(message.bytes(), initiation);
    assert!(pair.b.is_addressed(message.bytes()) && !pair.a.is_addressed(message.bytes()));

    let half = UnprovenInitiation::read(&pair.b, &message).unwrap();
    assert_eq!(half.public(), pair.a.public());
    let (asked, at) = half.prove(&pair.to_a).unwrap();
    assert_eq!(at, later_stamp());
    let (theirs, answer) =
        asked.answer(&pair.to_a, &counting_key(129), 0x5566_7788, &counting_key(97)).unwrap();
    assert_eq!(answer.bytes(), response);

    let ours = initiated.complete(&pair.a, &counting_key(129), &answer).unwrap();
    assert_eq!(seal_packet(&ours, b"sixteen bytes..."), data);
    assert_eq!(open_datagram(&theirs, data).unwrap(), b"sixteen bytes...");
    assert_eq!(open_datagram(&ours, seal_packet(&theirs, b"answer")).unwrap(), b"answer");
}

/// A boringtun tunnel whose peer is A or B of `Pair`.
fn boringtun_tunnel(private: [u8; KEY], peer: &Identity, preshared: [u8; KEY]) -> Tunn {
    let private = StaticSecret::from(private);
    let public = PublicKey::from(&private);
    let limiter = Arc::new(RateLimiter::new(&public, u64::MAX));
    let peer = PublicKey::from(*peer.public());
    Tunn::new(private, peer, Some(preshared), None, 5, Some(limiter))
}

fn to_network(result: TunnResult<'_>) -> Vec<u8> {
    match result {
        TunnResult::WriteToNetwork(message) => message.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// An IPv4 packet of 20 bytes, because boringtun reads its header.
fn ipv4_packet() -> Vec<u8> {
    let mut packet = vec![0; 20];
    (packet[0], packet[3]) = (0x45, 20);
    packet
}

#[test]
fn the_other_implementation_answers_ours() {
    let pair = Pair::new();
    let mut theirs = boringtun_tunnel(counting_key(33), &pair.a, counting_key(129));
    let stamp = Stamp::after(None, SystemTime::now());
    let (initiated, message) =
        begin_handshake(&pair.a, &pair.to_b, 7, stamp, &counting_key(65)).unwrap();
    let mut room = [0; 256];
    let answer = to_network(theirs.decapsulate(None, message.bytes(), &mut room));
    assert!(pair.a.is_addressed(&answer));
    let ours =
        initiated.complete(&pair.a, &counting_key(129), Response::read(&answer).unwrap()).unwrap();
    let packet = ipv4_packet();
    // The second counter is not zero.
    for _ in 0..2 {
        match theirs.decapsulate(None, &seal_packet(&ours, &packet), &mut room) {
            TunnResult::WriteToTunnelV4(came, _) => assert_eq!(came, packet),
            other => panic!("{other:?}"),
        }
    }
    let datagram = to_network(theirs.encapsulate(&packet, &mut room));
    assert_eq!(open_datagram(&ours, datagram).unwrap(), packet);
}

#[test]
fn ours_answers_the_other_implementation() {
    let pair = Pair::new();
    let mut theirs = boringtun_tunnel(counting_key(1), &pair.b, counting_key(129));
    let mut room = [0; 256];
    let message = to_network(theirs.format_handshake_initiation(&mut room, false));
    assert!(pair.b.is_addressed(&message));
    let half = UnprovenInitiation::read(&pair.b, Initiation::read(&message).unwrap()).unwrap();
    let (asked, _) = half.prove(&pair.to_a).unwrap();
    let (ours, answer) =
        asked.answer(&pair.to_a, &counting_key(129), 8, &counting_key(97)).unwrap();
    // The initiator's first message confirms the session.
    let confirmation = to_network(theirs.decapsulate(None, answer.bytes(), &mut room));
    assert_eq!(Session::index_in(&confirmation), Some(8));
    assert_eq!(open_datagram(&ours, confirmation).unwrap(), b"");
    match theirs.decapsulate(None, &seal_packet(&ours, &ipv4_packet()), &mut room) {
        TunnResult::WriteToTunnelV4(came, _) => assert_eq!(came, ipv4_packet()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn initiation_that_was_changed_is_refused() {
    let pair = Pair::new();
    let (_, message) =
        begin_handshake(&pair.a, &pair.to_b, 7, later_stamp(), &counting_key(65)).unwrap();
    // Type, index and codes are not part of the transcript. The first code covers type and index.
    for at in 0..148 {
        let mut changed = message.bytes().to_vec();
        changed[at] ^= 1;
        assert_eq!(
            pair.b.is_addressed(&changed),
            at >= 132,
            "byte {at}, the second code is not covered by the first"
        );
        let proven = Initiation::read(&changed).map(|message| {
            UnprovenInitiation::read(&pair.b, message)
                .and_then(|half| half.prove(&pair.to_a))
                .map(drop)
        });
        match at {
            0..4 => assert_eq!(proven, None),
            8..116 => assert!(matches!(proven, Some(Err(_))), "byte {at}: {proven:?}"),
            _ => assert_eq!(proven, Some(Ok(()))),
        }
    }
}

#[test]
fn initiation_of_another_node_is_refused() {
    let pair = Pair::new();
    let stranger = Identity::new(&counting_key(200));
    let to_b = Remote::new(&stranger, pair.b.public()).unwrap();
    let (_, message) =
        begin_handshake(&stranger, &to_b, 7, later_stamp(), &counting_key(65)).unwrap();
    let half = UnprovenInitiation::read(&pair.b, &message).unwrap();
    assert_eq!(half.public(), stranger.public());
    assert_eq!(half.prove(&pair.to_a).err(), Some(NoiseError::Stranger));
    assert_eq!(
        UnprovenInitiation::read(&pair.a, &message).err(),
        Some(NoiseError::Tag),
        "it is for another node"
    );
}

#[test]
fn answer_under_another_preshared_key_is_refused_and_the_right_one_taken_after_it() {
    let pair = Pair::new();
    assert_eq!(
        pair.complete_handshake(&counting_key(1), &counting_key(2)).err(),
        Some(NoiseError::Tag)
    );
    let (initiated, message) =
        begin_handshake(&pair.a, &pair.to_b, 7, later_stamp(), &counting_key(65)).unwrap();
    let answer = |preshared, ephemeral| {
        let half = UnprovenInitiation::read(&pair.b, &message).unwrap();
        let (asked, _) = half.prove(&pair.to_a).unwrap();
        asked.answer(&pair.to_a, &preshared, 8, &ephemeral).unwrap().1
    };
    let complete = |answer| initiated.complete(&pair.a, &counting_key(1), &answer).map(drop);
    assert_eq!(complete(answer(counting_key(2), counting_key(97))), Err(NoiseError::Tag));
    let mut misdirected = answer(counting_key(1), counting_key(97));
    misdirected.receiver = 9.into();
    assert_eq!(complete(misdirected), Err(NoiseError::Unasked));
    let mut weak = answer(counting_key(1), counting_key(97));
    weak.ephemeral = [0; KEY];
    assert_eq!(complete(weak), Err(NoiseError::WeakKey));
    assert_eq!(complete(answer(counting_key(1), counting_key(98))), Ok(()));
}
