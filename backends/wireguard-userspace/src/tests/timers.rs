//! Timers: rekeys, keepalives, and the end of sessions.

use super::*;
use crate::keypair::RENEWED_AFTER;

const INITIATION: usize = 148;
const KEEPALIVE: usize = OVERHEAD;

/// Sets the clocks of both nodes to `seconds` after the start of the session.
fn advance_to(nodes: [&mut Node; 2], seconds: u64) {
    for node in nodes {
        node.ahead = Duration::from_secs(seconds);
    }
}

/// A and B with one session, which A initiated.
fn session_of_a() -> (Node, Node) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    b.set(a.key, None, None);
    b.allow("10.5.1.0/24", a.key);
    b.work();
    a.add(&b, &["10.5.2.0/24"]);
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!([&a, &b].map(|node| counter_value(&node.handshakes().completed)), [1, 1]);
    sleep_briefly();
    (a, b)
}

/// The lengths of the messages that a node sends now.
fn sent_lengths(node: &mut Node) -> Vec<usize> {
    node.work();
    node.sent.drain(..).map(|(_, message)| message.len()).collect()
}

#[test]
fn initiator_asks_for_the_next_session_when_it_sends_after_two_minutes() {
    let (mut a, mut b) = session_of_a();
    for (seconds, asks) in [(119, false), (121, true)] {
        advance_to([&mut a, &mut b], seconds);
        assert_passes(&mut b, &mut a, &packet_back(b"back"));
        assert_passes(&mut a, &mut b, &packet_there(b"there"));
        assert!(!sent_lengths(&mut b).contains(&INITIATION), "B did not ask for it");
        assert_eq!(sent_lengths(&mut a).contains(&INITIATION), asks, "{seconds} s");
    }
    // The response is lost. The session continues until the next attempt.
    assert_passes(&mut a, &mut b, &packet_there(b"there"));
    advance_to([&mut a, &mut b], 127);
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!(counter_value(&a.handshakes().completed), 2);
    assert_passes(&mut a, &mut b, &packet_there(b"there"));
    assert_passes(&mut b, &mut a, &packet_back(b"back"));
}

/// The responder does so too.
#[test]
fn either_asks_for_the_next_session_after_many_packets() {
    let (mut a, mut b) = session_of_a();
    for _ in 0..=RENEWED_AFTER {
        assert_eq!(sent_lengths(&mut b), [0; 0]);
        assert_passes(&mut b, &mut a, &packet_back(b"back"));
    }
    assert_passes(&mut b, &mut a, &packet_back(b"back"));
    exchange_all(&mut [&mut a, &mut b]);
    let initiated = |node: &Node| counter_value(&node.handshakes().initiated);
    assert_eq!([initiated(&a), initiated(&b)], [1, 1]);
    for _ in 0..3 {
        assert_passes(&mut b, &mut a, &packet_back(b"back"));
        assert_passes(&mut a, &mut b, &packet_there(b"there"));
    }
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!([initiated(&a), initiated(&b)], [1, 1], "the new one is fresh");
}

#[test]
fn initiator_that_only_receives_asks_before_the_end() {
    let (mut a, mut b) = session_of_a();
    for (seconds, asks) in [(150, false), (166, true)] {
        advance_to([&mut a, &mut b], seconds);
        assert_passes(&mut b, &mut a, &packet_back(b"back"));
        assert_eq!(sent_lengths(&mut a).contains(&INITIATION), asks, "{seconds} s");
    }
}

#[test]
fn packet_is_acknowledged_after_ten_seconds_unless_something_was_sent() {
    let (mut a, mut b) = session_of_a();
    assert_passes(&mut a, &mut b, &packet_there(b"there"));
    advance_to([&mut a, &mut b], 9);
    assert_eq!(sent_lengths(&mut b), [0; 0]);
    advance_to([&mut a, &mut b], 11);
    assert_eq!(sent_lengths(&mut b), [KEEPALIVE]);
    advance_to([&mut a, &mut b], 30);
    assert_eq!(sent_lengths(&mut b), [0; 0], "once");
    assert_passes(&mut a, &mut b, &packet_there(b"there"));
    assert_passes(&mut b, &mut a, &packet_back(b"back"));
    advance_to([&mut a, &mut b], 41);
    assert_eq!(sent_lengths(&mut b), [0; 0], "its own packet said so");
}

/// Keepalives acknowledge packets at intervals of 16 seconds.
#[test]
fn seldom_packets_one_way_cause_no_handshake() {
    let (mut a, mut b) = session_of_a();
    for second in 0..110 {
        advance_to([&mut a, &mut b], second);
        if second % 16 == 0 {
            assert_passes(&mut a, &mut b, &packet_there(b"there"));
        }
        exchange_all(&mut [&mut a, &mut b]);
    }
    assert_eq!(counter_value(&a.handshakes().initiated), 1);
    assert_eq!(counter_value(&b.handshakes().initiated), 0);
}

/// The time counts from the first unanswered packet, not from the last received one.
#[test]
fn unanswered_packet_causes_a_handshake_after_fifteen_seconds() {
    let (mut a, mut b) = session_of_a();
    advance_to([&mut a, &mut b], 50);
    a.pod_sends(&packet_there(b"there")).unwrap();
    for (seconds, asks) in [(64, false), (66, true), (68, false), (72, true)] {
        advance_to([&mut a, &mut b], seconds);
        assert_eq!(sent_lengths(&mut a).contains(&INITIATION), asks, "{seconds} s");
    }
}

/// The kernel's WireGuard silently drops datagrams of a session older than 180 seconds.
#[test]
fn session_opens_and_seals_for_three_minutes() {
    let (mut a, mut b) = session_of_a();
    let [late, too_late] = [(); 2].map(|()| a.sealed(&packet_there(b"there")));
    advance_to([&mut a, &mut b], 179);
    assert_eq!(b.receives(a.address, &late), Ok(()));
    assert!(b.pod_sends(&packet_back(b"back")).unwrap().is_some());
    advance_to([&mut a, &mut b], 181);
    assert_eq!(b.receives(a.address, &too_late), Err(DropError::NoSession));
    assert_eq!(
        (a.pod_sends(&packet_there(b"new")), b.pod_sends(&packet_back(b"new"))),
        (Ok(None), Ok(None))
    );
    b.work();
    let index = u32::from_le_bytes(too_late[4..8].try_into().unwrap());
    assert!(b.device.indices.get(index).is_none(), "its keys are gone, too");
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!(
        (a.delivered.last(), b.delivered.last()),
        (Some(&packet_back(b"new")), Some(&packet_there(b"new")))
    );
}

/// Only the peer has a new preshared key. It begins handshakes again and again, and no response leads to a
/// session.
#[test]
fn handshakes_that_lead_to_nothing_leave_a_living_session_alone() {
    // Both sides initiated a handshake, so each may send in a different session.
    let (mut a, mut b) = pair_with_session();
    sleep_briefly();
    b.set(a.key, None, Some(5));
    let answered = counter_value(&a.handshakes().answered);
    for round in 1..=12 {
        advance_to([&mut a, &mut b], 6 * round);
        let snapshot = b.device.snapshot().clone();
        b.device.want_session(snapshot.peers.get(&a.key).unwrap(), b.now());
        exchange_all(&mut [&mut a, &mut b]);
        assert_passes(&mut a, &mut b, &packet_there(b"there"));
        assert_passes(&mut b, &mut a, &packet_back(b"back"));
    }
    assert!(counter_value(&a.handshakes().answered) >= answered + 12);
    assert!(b.refused(DropError::BadTag) >= 12);
}

/// While nothing is due for a peer, its timers do not run.
#[test]
fn idle_peer_is_visited_at_the_end_of_its_sessions_only() {
    let (mut a, mut b) = session_of_a();
    assert_passes(&mut a, &mut b, &packet_there(b"there"));
    assert_passes(&mut b, &mut a, &packet_back(b"back"));
    for seconds in [11, 40] {
        advance_to([&mut a, &mut b], seconds);
        exchange_all(&mut [&mut a, &mut b]);
    }
    let next = a.device.pending.next().unwrap();
    assert!(next > a.now() + Duration::from_secs(100), "{:?}", next - a.now());
    advance_to([&mut a, &mut b], 190);
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!(a.device.pending.next(), None);
}
