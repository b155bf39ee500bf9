//! A datagram on the probe port. Encoding a parsed message again changes nothing, a report exceeds no limit,
//! and a node's reply is not longer than the datagram.
#![no_main]

use libfuzzer_sys::fuzz_target;
use probing::node::{Client, Datagram, LocalNode, Node, Now};
use probing::rows;
use probing::target::{Path, Target};
use probing::who::who;
use probing::wire::{ECHO, HEADER, Message, ROW, echo, parse, row_answer};
use std::time::Duration;
use types::reachability::State;

const NOW: Now = Now { at: Duration::from_secs(100), wall_ms: 1_700_000_000_000 };

/// A node that has sent probes and a report request to a single peer.
fn node() -> Node {
    let own = "10.5.1.0/24".parse().unwrap();
    let itself = LocalNode {
        who_v4: Some(who("a", &own)),
        who_v6: None,
        subnet_v4: Some(own),
        subnet_v6: None,
        overlay_v4: Some(own.network()),
        overlay_v6: None,
        device: true,
        clear: true,
        mtu_v4: 1450,
        mtu_v6: 1430,
    };
    // Nonces that a fuzzer can find.
    let mut nonce = 0;
    let mut node = Node::new(itself, NOW.at, move || {
        nonce += 1;
        nonce
    });
    let peer = Target {
        id: Some("b".into()),
        name: Some("b".into()),
        subnet: "10.5.2.0/24".parse().unwrap(),
        address: [192, 0, 2, 2].into(),
        primary: true,
        on_link: true,
    };
    node.set_targets(vec![peer], NOW.at);
    node.request_rows(Client::Command, NOW);
    node.wake(Now { at: NOW.at + Duration::from_secs(2), ..NOW });
    node
}

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Some(Message::Echo(header, body)) => {
            assert!(data.len() >= ECHO);
            assert_eq!(parse(&echo(&header, &body, data.len())), Some(Message::Echo(header, body)));
        }
        Some(Message::Row(header, rest)) => {
            assert!(data.len() <= ROW);
            if !header.kind.asks() {
                assert_eq!(row_answer(&header, rest).unwrap(), data);
                assert_eq!(rest.len(), data.len() - HEADER);
            }
            if let Some(body) = rows::read(rest) {
                assert!(body.cells.len() * 8 <= rest.len());
                let again = rows::write(&body);
                assert!(HEADER + again.len() <= ROW);
                let again = rows::read(&again).unwrap();
                assert_eq!(
                    (again.counts, again.own, again.rtt_us),
                    (body.counts, body.own, body.rtt_us)
                );
            }
        }
        None => {}
    }
    let _ = rows::read(data);
    let mut node = node();
    let now = Now { at: NOW.at + Duration::from_secs(2), ..NOW };
    for (path, from, known) in [
        (Path::Overlay, [10, 5, 2, 0], true),
        (Path::Underlay, [192, 0, 2, 2], true),
        (Path::Underlay, [192, 0, 2, 9], false),
    ] {
        let answer =
            node.receive(now, Datagram { path, from: from.into(), at: now.at, bytes: data });
        assert!(answer.is_none_or(|answer| known && answer.len() <= data.len()));
    }
    // One datagram must not lead to the verdict that a peer is cut off.
    assert!(node.counts().keys().all(|state| *state != State::CutOff));
    node.wake(now);
    let shown = node.show(now, 8473, Vec::new());
    assert!(shown.rows.len() <= 1 && shown.peers.len() == 1);
});
