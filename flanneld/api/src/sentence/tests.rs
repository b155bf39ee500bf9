use super::*;
use crate::view::tests::{cluster, finding, peer_in};
use probing::view::{Cell, Own, PeerOpinion};

/// A change to a healthy cluster, the expected health level, and a part of the sentence's title and text.
type Case = (&'static str, fn(&mut Node), Health, &'static str, &'static str);

fn mesh(node: &mut Node) -> &mut Mesh {
    node.mesh.as_mut().unwrap()
}

fn set(node: &mut Node, index: usize, state: State) {
    mesh(node).peers[index].state = state;
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("healthy", |_| {}, Health::Good, "All 3", "0.49 ms · 1450 bytes"),
    ("two nodes", |node| *node = cluster(2), Health::Good, "Both", "round trip"),
    ("one node", |node| *node = cluster(1), Health::Good, "node-1 is ready", "No other node"),
    ("a silent reporter", |node| { mesh(node).rows.pop(); }, Health::Good, "both other nodes", "round trip"),
    ("a risk", |node| node.findings = Some(vec![finding(Severity::Risk, "mtu-mismatch")]), Health::Good, "All 3", "1 risk"),
    ("ping only", |node| mesh(node).peers[0].ping_only = true, Health::Good, "All 3", "only to ping"),
    ("no probes", |node| node.mesh = None, Health::Unknown, "node-1 is ready", "no probes"),
    ("not probed yet", |node| set(node, 1, State::Unknown), Health::Unknown, "node-1 is ready", "1 of 2"),
    ("starting", |node| { node.readiness.ready = false; node.readiness.reasons = vec![crate::Reason { condition: "lease".into(), code: String::new(), text: "etcd does not respond".into() }]; }, Health::Bad, "node-1 is not ready", "etcd does not respond"),
    ("hanging", |node| node.readiness.silent = Some("no heartbeat".into()), Health::Bad, "flanneld hangs on node-1", "no heartbeat"),
    ("cut off", |node| set(node, 1, State::CutOff), Health::Bad, "node-3 is cut off", "neither"),
    ("cut off for others", |node| { set(node, 1, State::CutOff); mesh(node).peers[1].others = vec![PeerOpinion { by: "node-2".into(), state: State::CutOff, age_ms: 1 }]; },
        Health::Bad, "node-3 is cut off", "Another node"),
    ("overlay", |node| set(node, 0, State::OverlayCut), Health::Bad, "The overlay to node-2 is cut", "over the underlay"),
    ("one way", |node| set(node, 0, State::OneWay), Health::Bad, "Replies of node-2 get lost", "The peer receives"),
    ("wrong node", |node| set(node, 0, State::WrongNode), Health::Bad, "Another node", "Two machines"),
    ("all cut", |node| { set(node, 0, State::CutOff); set(node, 1, State::CutOff); }, Health::Bad, "no other node", "For 1 min."),
    ("all cut, with a cause", |node| { set(node, 0, State::CutOff); set(node, 1, State::CutOff); node.findings = Some(vec![finding(Severity::Broken, "wrong-interface")]); },
        Health::Bad, "no other node", "what of wrong-interface"),
    ("several cut", |node| { *node = cluster(4); set(node, 0, State::CutOff); set(node, 1, State::OverlayCut); }, Health::Bad, "2 nodes", "node-2, node-3. For 1 min."),
    ("finding", |node| node.findings = Some(vec![finding(Severity::Degraded, "x"), finding(Severity::Broken, "ip-forward")]), Health::Bad, "what of ip-forward", "why of ip-forward."),
    ("explained", |node| node.findings = Some(vec![Finding { explained_by: Some("x".into()), ..finding(Severity::Broken, "y") }]), Health::Good, "All 3", ""),
    ("degraded", |node| node.findings = Some(vec![finding(Severity::Degraded, "x")]), Health::Warn, "what of x", "why of x."),
    ("small MTU", |node| { set(node, 1, State::SmallMtu); mesh(node).peers[1].carries = Some(1372); }, Health::Warn, "Large packets to and from node-3", "1372 bytes"),
    ("losses", |node| { set(node, 1, State::LosesSome); mesh(node).peers[1].lost = 5; }, Health::Warn, "Some packets to and from node-3", "5 of the last 16"),
    ("slow", |node| { set(node, 1, State::Slow); mesh(node).peers[1].rtt_us = Some(31_000); }, Health::Warn, "The path to node-3 is slow", "31 ms"),
    ("worst first", |node| { set(node, 0, State::Slow); set(node, 1, State::SmallMtu); }, Health::Warn, "Large packets to and from node-3", "Packets of up to 1450"),
    ("other node", |node| mesh(node).rows[0].own = Some(Own { ready: true, broken: 1, gravest: Some("ip-forward".into()), ..Own::default() }), Health::Bad, "node-2 has a problem: ip-forward", "flannelctl doctor"),
    ("other node and its peer", |node| mesh(node).rows[0].own = Some(Own { ready: true, broken: 1, gravest: Some("peer-cut".into()), ..Own::default() }), Health::Good, "All 3", ""),
    ("others cut", |node| mesh(node).rows[0].peers[1].state = State::CutOff, Health::Bad, "node-2 does not reach node-3", "node-1 itself"),
    ("others slow", |node| mesh(node).rows[0].peers[1].state = State::Slow, Health::Warn, "from node-2 to node-3", "node-1 itself"),
    ("many others cut", |node| for row in &mut mesh(node).rows { for cell in &mut row.peers { cell.state = State::OverlayCut; } }, Health::Bad, "4 directions", "node-1 itself"),
    ("nothing known", |node| *node = Node::default(), Health::Bad, "This node is not ready", ""),
];

#[test]
fn sentence_names_the_worst_state() {
    for (name, change, level, title, text) in CASES {
        let mut node = cluster(3);
        change(&mut node);
        let sentence = sentence(&node);
        assert_eq!(sentence.level, *level, "{name}: {sentence:?}");
        assert!(sentence.title.contains(title), "{name}: {sentence:?}");
        assert!(sentence.text.contains(text), "{name}: {sentence:?}");
    }
}

#[test]
fn peer_in_two_families_is_one_node() {
    let mut node = cluster(3);
    let v6 = "fd00:2::/64".parse().unwrap();
    node.peers[0].subnets.push(v6);
    let mut second = peer_in(State::CutOff, 2);
    second.subnet = v6;
    mesh(&mut node).peers.push(second);
    set(&mut node, 0, State::CutOff);
    let sentence = sentence(&node);
    assert_eq!(sentence.title, "node-2 is cut off", "{sentence:?}");
    let cell = Cell {
        subnet: v6,
        state: State::Well,
        ping_only: false,
        rtt_us: None,
        lost: 0,
        asked_age_ms: None,
    };
    assert_eq!(name_of(&node, &cell.subnet), "node-2");
}
