//! A WireGuard message from any sender: the node accepts only unchanged messages of a peer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime};
use wireguard_userspace::noise::{
    CookieChecker, CookieReply, Identity, Initiated, Initiation, NoiseError, PeerCookie, Remote,
    Response, Session, Stamp, UnprovenInitiation, begin_handshake,
};

/// A handshake between two nodes, before the initiator processes the response.
struct Scene {
    initiator: Identity,
    responder: Identity,
    /// The initiator as a peer of the responder; `to_responder` is the reverse.
    to_initiator: Remote,
    to_responder: Remote,
    initiated: Initiated,
    session: Session,
    checker: CookieChecker,
    now: Instant,
    /// An initiation, a response, a cookie reply and a data packet.
    sent: [Vec<u8>; 4],
}

fn from() -> SocketAddr {
    "192.0.2.7:51820".parse().unwrap()
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let (initiator, responder) = (Identity::new(&[1; 32]), Identity::new(&[2; 32]));
    let to_initiator = Remote::new(&responder, initiator.public()).unwrap();
    let to_responder = Remote::new(&initiator, responder.public()).unwrap();
    let stamp = Stamp::after(None, SystemTime::UNIX_EPOCH);
    let (initiated, initiation) =
        begin_handshake(&initiator, &to_responder, 7, stamp, &[3; 32]).unwrap();
    let half = UnprovenInitiation::read(&responder, &initiation).unwrap();
    let (asked, _) = half.prove(&to_initiator).unwrap();
    let (session, response) = asked.answer(&to_initiator, &[0; 32], 8, &[4; 32]).unwrap();
    let theirs = initiated.complete(&initiator, &[0; 32], &response).unwrap();
    let mut packet = vec![9; 84];
    theirs.seal(&mut packet).unwrap();
    let now = Instant::now();
    let checker = CookieChecker::new([5; 32], now);
    let cookie = checker.reply(&responder, from(), initiation.bytes(), [6; 24]).unwrap();
    let sent =
        [initiation.bytes().to_vec(), response.bytes().to_vec(), cookie.bytes().to_vec(), packet];
    Scene {
        initiator,
        responder,
        to_initiator,
        to_responder,
        initiated,
        session,
        checker,
        now,
        sent,
    }
});

// The first byte selects one of these messages, and whether the rest replaces it or flips its bits.
fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let scene = &*SCENE;
    let sent = &scene.sent[usize::from(choice & 3)];
    let message: Vec<u8> = if choice & 4 == 0 {
        rest.to_vec()
    } else {
        let bits = rest.iter().chain(std::iter::repeat(&0));
        sent.iter().zip(bits).map(|(byte, bits)| byte ^ bits).collect()
    };
    // The MACs of a handshake message are checked separately, and so is the index in an initiation.
    let same = |part: std::ops::Range<usize>| message.get(part.clone()) == sent.get(part);
    if let Some(initiation) = Initiation::read(&message) {
        let proven = UnprovenInitiation::read(&scene.responder, initiation)
            .and_then(|half| half.prove(&scene.to_initiator));
        assert!(proven.is_err() || choice & 3 == 0 && same(8..116));
        let addressed = scene.responder.is_addressed(&message);
        assert!(!addressed || choice & 3 == 0 && same(0..132));
        assert!(!scene.checker.is_proven(from(), &message, scene.now));
        let _ = scene.checker.reply(&scene.responder, from(), &message, [7; 24]);
    }
    if let Some(response) = Response::read(&message) {
        let done = scene.initiated.complete(&scene.initiator, &[0; 32], response);
        // The tag does not cover the index of the responder.
        assert!(done.is_err() || choice & 3 == 1 && same(8..60));
    }
    if let Some(cookie) = CookieReply::read(&message) {
        let mut peer_cookie = PeerCookie::default();
        let kept = peer_cookie.keep(&scene.to_responder, cookie, scene.now);
        assert_eq!(kept, Err(NoiseError::Unasked));
        let mut asked = Initiation::read(&scene.sent[0]).unwrap().clone();
        peer_cookie.prove(&mut asked, scene.now);
        let kept = peer_cookie.keep(&scene.to_responder, cookie, scene.now);
        assert!(kept.is_err() || choice & 3 == 2 && same(8..64));
    }
    let mut datagram = message.clone();
    if Session::index_in(&message).is_some() {
        let opened = scene.session.open(&mut datagram);
        assert!(opened.is_err() || choice & 3 == 3 && same(8..84));
    }
});
