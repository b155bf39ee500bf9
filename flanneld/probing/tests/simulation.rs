//! Simulates whole clusters without sockets, and tests the cost of probes, the detection times, and the effects of forged or malformed messages.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

mod simulation {
    pub(crate) mod world;
}

use probing::node::Datagram;
use probing::target::Path;
use probing::view::{PeerView, Probe, Row};
use probing::wire::{Message, MessageKind, parse, row_answer};
use simulation::world::{Link, World, sizes};
use std::net::IpAddr;
use std::time::Duration;
use types::reachability::State;

const S: Duration = Duration::from_secs(1);

/// A cluster whose nodes know each other.
fn cluster(nodes: usize) -> World {
    let mut world = World::new(nodes);
    world.run(20 * S);
    world
}

fn peer(world: &World, node: usize, place: usize) -> PeerView {
    world.view(node).peers[place].clone()
}

#[test]
fn healthy_cluster_is_well_and_only_well() {
    for nodes in [2, 3, 10] {
        let mut world = World::new(nodes);
        world.run(40 * S);
        for peer in (0..nodes).flat_map(|node| world.view(node).peers) {
            assert!(
                peer.state == State::Well
                    && (peer.carries, peer.lost) == (Some(1450), 0)
                    && peer.rtt_us.is_some_and(|us| (900..1100).contains(&us))
                    && peer.clock_offset_ms.is_some_and(|ms| ms.abs() <= 1),
                "{peer:?}"
            );
        }
        world.run(600 * S);
        let mut notices = world.notices.iter().map(|(_, notice)| notice);
        assert!(
            notices.all(|notice| (notice.was, notice.is) == (State::Unknown, State::Well)),
            "{:?}",
            world.notices
        );
    }
}

#[test]
fn fault_has_its_verdict_at_both_ends() {
    use State::{CutOff, OneWay, OverlayCut, Slow, SmallMtu, Well};
    let slow = Link { delay: Duration::from_millis(20), ..Link::default() };
    for (link, seconds, verdicts) in [
        (Link::overlay([false; 2]), 11, [OverlayCut, OverlayCut]),
        (Link::dead(), 11, [CutOff, CutOff]),
        // What node 0 sends does not arrive at node 1: neither its probes nor its replies.
        (Link::overlay([false, true]), 11, [OverlayCut, OneWay]),
        (Link::overlay([true, false]), 11, [OneWay, OverlayCut]),
        (Link::mtu([1400, 1400]), 11, [SmallMtu, SmallMtu]),
        (Link::mtu([1400, 9000]), 11, [SmallMtu, Well]),
        (slow, 120, [Slow, Slow]),
    ] {
        let mut world = cluster(if seconds > 11 { 5 } else { 3 });
        world.run(10 * S);
        world.set(0, 1, link);
        world.until(seconds * S, |world| world.pair() == verdicts);
        world.run(30 * S);
        assert_eq!(world.pair(), verdicts, "{link:?}: it stays");
        let others = [world.state(0, 2), world.state(1, 2), world.state(2, 0)];
        assert_eq!(others, [Well; 3], "{link:?}");
        world.set(0, 1, Link::default());
        world.until((seconds + 1) * S, |world| world.all(Well));
    }
}

/// If the tunnel is encrypted, only pings use the underlay, even during a fault and while a client views reports.
#[test]
fn encrypted_tunnel_sends_no_question_in_the_clear() {
    let mut world = World::encrypted(3);
    world.until(20 * S, |world| world.all(State::Well));
    world.look(0);
    world.set(0, 1, Link::overlay([false; 2]));
    world.until(30 * S, |world| world.pair() == [State::OverlayCut; 2]);
    let probe = world.ask(0, 1).unwrap();
    assert!(
        probe.underlay.asked == 0 && probe.underlay_ping.answered > 0 && probe.small.answered == 0,
        "{probe:?}"
    );
    world.set(0, 1, Link::dead());
    world.until(60 * S, |world| world.pair() == [State::CutOff; 2]);
    world.set(0, 1, Link::default());
    world.until(60 * S, |world| world.all(State::Well));
    assert_eq!(world.underlay, 0);
    assert!(cluster(2).underlay > 0, "the count counts");
}

#[test]
fn usable_mtu_is_found_to_the_byte() {
    let mut world = cluster(2);
    for (mtu, state) in [
        (1400, State::SmallMtu),
        (1449, State::SmallMtu),
        (577, State::SmallMtu),
        (1450, State::Well),
    ] {
        world.set(0, 1, Link::mtu([mtu.min(1449) + 9000 * u16::from(mtu == 1450); 2]));
        world.until(120 * S, |world| {
            [peer(world, 0, 0), peer(world, 1, 0)].map(|peer| peer.carries) == [Some(mtu); 2]
                && world.all(state)
        });
    }
}

#[test]
fn losing_one_in_three_is_lossy_and_no_worse() {
    for seed in 0..16 {
        let mut world = World::with_seed(3, seed);
        world.run(20 * S);
        let lossy = Link { lost: 333, ..Link::default() };
        world.set(0, 1, lossy);
        world.until(150 * S, |world| world.pair() == [State::LosesSome; 2]);
        world.run(300 * S);
        let worse = world.notices.iter().find(|(_, notice)| notice.is > State::SmallMtu);
        assert!(worse.is_none(), "seed {seed}: {worse:?}");
        assert!([State::Well, State::LosesSome].contains(&world.state(0, 2)));
    }
}

#[test]
fn filtered_port_and_go_flannel_are_well_by_ping() {
    let mut world = World::new(3);
    let to_2 = |world: &World| peer(world, 0, 1);
    // Node 2 runs no prober.
    world.deaf.insert(2);
    world.until(60 * S, |world| world.tally(0) == [(State::Well, 2)].into());
    assert_eq!([0, 1].map(|place| peer(&world, 0, place).ping_only), [false, true]);
    world.run(60 * S);
    // Its MTU is known nevertheless.
    assert_eq!(to_2(&world).carries, Some(1450));
    world.set(0, 2, Link::mtu([1400; 2]));
    world.until(120 * S, |world| {
        (to_2(world).state, to_2(world).carries) == (State::SmallMtu, Some(1400))
    });
    world.set(0, 2, Link::default());
    // The prober of node 2 starts. Its probes make its peers probe it at once.
    world.deaf.clear();
    world.until(30 * S, |world| world.all(State::Well) && !to_2(world).ping_only);
    // Firewalls drop the probe port everywhere. No peer is broken, now or later.
    world.filtered = true;
    let before = world.notices.len();
    world.until(60 * S, |world| {
        (0..3).all(|node| world.view(node).peers.iter().all(|peer| peer.ping_only))
    });
    world.run(120 * S);
    assert_eq!(world.notices[before..], []);
    // The overlay is also cut.
    world.set(0, 1, Link::overlay([false; 2]));
    world.until(30 * S, |world| {
        world.state(0, 1) == State::OverlayCut && peer(world, 0, 0).ping_only
    });
}

#[test]
fn other_node_in_a_peers_place_is_noticed() {
    let mut world = cluster(3);
    // Node 2 replies at node 1's address.
    world.takes_over(1, 2);
    world.until(30 * S, |world| world.state(0, 1) == State::WrongNode);
    assert_eq!(peer(&world, 0, 0).answered_by.as_deref(), Some("node-2"));
    assert_eq!(world.state(0, 2), State::Well);
}

fn row(rows: &[Row], name: &str) -> Row {
    let mut rows = rows.iter().cloned();
    rows.find(|row| row.name.as_deref() == Some(name)).unwrap()
}

#[test]
fn rows_are_requested_only_while_they_are_viewed() {
    let mut world = World::new(10);
    world.set(3, 4, Link::overlay([false; 2]));
    world.run(60 * S);
    let busy = world.sent_rows;
    assert!(busy <= 20 * 10, "{busy}: some are asked about a peer in trouble");
    world.run(25 * S);
    world.look(0);
    world.run(3 * S);
    let rows = world.view(0).rows;
    let answered = rows.iter().filter(|row| row.answered_age_ms.is_some());
    assert_eq!(answered.count(), 9);
    let of_3 = row(&rows, "node-3");
    assert_eq!(of_3.counts.get(&State::OverlayCut), Some(&1));
    // Node 0 itself is among them.
    let cut = of_3.peers.iter().filter(|cell| cell.state == State::OverlayCut);
    assert_eq!((of_3.peers.len(), cut.count()), (9, 1));
    // A view has other nodes' verdicts on a peer in trouble, here those of both ends of the link.
    let view = world.view(3);
    let cut = view.peers.iter().find(|peer| peer.state == State::OverlayCut);
    assert!(cut.unwrap().others.iter().any(|opinion| opinion.state == State::Well));
    world.run(20 * S);
    let (before, others) = (world.sent_rows, world.rows_of_trouble());
    world.run(25 * S);
    assert!(world.sent_rows - before <= others, "nobody looks any more");
    world.run(320 * S);
    world.look(1);
    world.run(S);
    let mut ages = world.view(0).rows.into_iter().map(|row| row.answered_age_ms);
    assert!(ages.all(|age| age.is_none_or(|age| age <= 300_000)));
}

#[test]
fn hostile_messages_change_no_other_peers_verdict() {
    use MessageKind::{EchoAnswer, EchoQuestion, PodCall, PodQuestion, RowAnswer, RowQuestion};
    let mut world = cluster(4);
    let sources = [
        "10.5.2.7".parse().unwrap(),
        world.address(1),
        world.overlay(1),
        "198.51.100.9".parse::<IpAddr>().unwrap(),
    ];
    let (mut answers, mut bytes_in, mut bytes_out) = (0, 0, 0);
    for step in 0..20_000usize {
        let from = sources[step % 4];
        let kinds = [EchoQuestion, EchoAnswer, RowQuestion, RowAnswer, PodQuestion, PodCall];
        let kind = kinds[step / 4 % 6];
        let nonce = u64::try_from(step).unwrap();
        let mut bytes = world.forge(kind, nonce, 1 + step % 3, 0, Some(7));
        if kind == RowAnswer {
            let Some(Message::Echo(header, _) | Message::Row(header, _)) = parse(&bytes) else {
                panic!("{bytes:?}")
            };
            bytes = row_answer(&header, &[0xff; 100]).unwrap();
        }
        if step % 7 == 0 {
            let place = step % bytes.len();
            bytes[place] ^= 0x55;
        }
        let path = [Path::Overlay, Path::Underlay][step % 2];
        let at = world.now.at;
        let answer = world.deliver(0, Datagram { path, from, at, bytes: &bytes });
        bytes_in += bytes.len();
        if let Some(answer) = answer {
            assert!(sources[1..3].contains(&from), "{from} has no lease");
            assert!(answer.len() <= bytes.len());
            let parsed = parse(&answer);
            assert!(!matches!(&parsed, Some(Message::Echo(header, _)) if header.kind.asks()));
            answers += 1;
            bytes_out += answer.len();
        }
        if step % 10 == 0 {
            world.run(Duration::from_millis(10));
        }
    }
    assert!(
        answers <= 2 * (20 * 21 + 2 * 21) && bytes_out <= bytes_in,
        "{answers} answers in 20 s to two addresses"
    );
    world.run(20 * S);
    assert!(world.all(State::Well));
    let traffic = world.view(0).traffic;
    assert!(
        traffic.junk > 1000 && traffic.strangers > 1000 && traffic.limited > 1000,
        "{traffic:?}"
    );
}

/// A flood of probes with a peer's forged address does not use up the rate limit for replies to the peer. The peer starts before or during the flood.
#[test]
fn forged_flood_costs_the_peer_no_answer() {
    let mut world = cluster(3);
    let flood = |world: &mut World, seconds: u32, harmless: bool| {
        for nonce in 0..seconds * 2000 {
            let bytes = world.forge(MessageKind::EchoQuestion, nonce.into(), 1, 0, Some(nonce + 1));
            world.inject(Path::Overlay, 1, 0, &bytes);
            world.inject(Path::Underlay, 1, 0, &bytes);
            if nonce % 4 > 0 {
                continue;
            }
            world.run(Duration::from_millis(2));
            if harmless {
                assert!(world.all(State::Well));
                let mut peers = (0..3).flat_map(|node| world.view(node).peers);
                assert!(peers.all(|peer| peer.lost == 0 && !peer.ping_only));
            }
        }
    };
    flood(&mut world, 60, true);
    let limited = world.view(0).traffic.limited;
    assert!(limited > 100_000, "{limited}");
    // A restarted node knows no token. It gets one with the first probe.
    world.restart(1);
    world.run(20 * S);
    flood(&mut world, 30, true);
    // A node that restarts during the flood gets forged tokens. One or two probes of the peer itself correct that.
    for node in [0, 1] {
        world.restart(node);
        flood(&mut world, 200, false);
        flood(&mut world, 30, true);
    }
}

/// Forged probes do not change the verdict `overlay-cut` into `one-way`, although a pod with raw sockets can forge a peer's overlay address.
#[test]
fn forged_questions_do_not_turn_a_cut_into_one_way() {
    let mut world = cluster(3);
    world.set(0, 1, Link::overlay([false; 2]));
    // A restarted daemon knows no token; it learns the token over the underlay. It is not sure of its peer until that peer
    // has repeated its token.
    for restarted in [None, Some(1), Some(0)] {
        restarted.into_iter().for_each(|node| world.restart(node));
        for nonce in 1..450u32 {
            let token = Some(nonce).filter(|nonce| nonce.is_multiple_of(2));
            let bytes = world.forge(MessageKind::EchoQuestion, nonce.into(), 1, 0, token);
            world.inject(Path::Overlay, 1, 0, &bytes);
            world.run(S / 5);
        }
        assert_eq!(world.pair(), [State::OverlayCut; 2], "{restarted:?}");
    }
    world.set(0, 1, Link::default());
    world.until(30 * S, |world| world.all(State::Well));
}

#[test]
fn false_row_is_only_the_claim_of_one_node() {
    let mut world = cluster(4);
    world.liar = Some(1);
    world.look(0);
    world.run(3 * S);
    let view = world.view(0);
    let lies = row(&view.rows, "node-1");
    assert_eq!(lies.counts.get(&State::CutOff), Some(&u32::MAX));
    let gravest = lies.own.unwrap().gravest;
    assert_eq!(gravest, None, "no text but the name of a check");
    assert!(world.all(State::Well) && view.peers.iter().all(|peer| peer.others.is_empty()));
}

/// The size of the view is bounded for any number and size of reports: the view keeps only the worst peers of each report.
#[test]
fn rows_of_many_nodes_are_bounded() {
    let mut world = World::new(300);
    world.set(7, 8, Link::overlay([false; 2]));
    world.run(90 * S);
    world.look(0);
    world.run(6 * S);
    let rows = world.view(0).rows;
    assert_eq!(rows.len(), 299);
    for row in &rows {
        let known = row.counts.values().sum::<u32>();
        assert!(row.answered_age_ms.is_some() && known == 299, "{row:?}");
    }
    let cells: usize = rows.iter().map(|row| row.peers.len()).sum();
    assert!((10_000..=20_200).contains(&cells), "{cells}");
    let worst = row(&rows, "node-7").peers.first().map(|cell| cell.state);
    assert_eq!(worst, Some(State::OverlayCut), "the worst comes first");
}

/// Each node of an idle cluster sends few probes and bytes, and probes each peer once per cycle. A firewall that drops all packets
/// over the underlay except tunnel packets does not make each probe start a whole round of probes.
#[test]
fn idle_nodes_send_little() {
    let filtered = Link { underlay: [false; 2], ..Link::default() };
    let large = sizes(&[100, 300, 1000]).map(|nodes| (nodes, 1, Link::default()));
    for (nodes, cycles, link) in
        [(10, 5, Link::default()), (40, 3, filtered)].into_iter().chain(large)
    {
        let mut world = World::new(nodes);
        for a in 0..nodes {
            (0..a).for_each(|b| world.set(b, a, link));
        }
        let cycle = probing::schedule::cycle(nodes - 1, nodes - 1);
        // After one cycle all peers are known. After five it is known what is filtered, because every fourth probe goes over the underlay.
        world.run(cycle * if link.underlay == [true; 2] { 12 } else { 120 } / 10 + 2 * S);
        world.count();
        // A peer may be the first of one cycle and the last of the next.
        let time = cycle * 22 / 10 * cycles;
        world.run(time);
        let seconds = time.as_secs_f64();
        for count in &world.counts {
            assert!(
                f64::from(count.questions) <= 8.0 * seconds
                    && count.bytes as f64 <= 2_000.0 * seconds
                    && count.sent.most <= 8 + 2
                    && count.received.most <= 25
                    && count.asked.len() == nodes - 1,
                "of {nodes} in {seconds} s: {count:?}"
            );
        }
    }
}

/// For each kind of probe, how many a session sent and how many of them got a reply.
fn counts(probe: &Probe) -> [(u8, u8); 6] {
    [probe.small, probe.full, probe.underlay, probe.ping, probe.full_ping, probe.underlay_ping]
        .map(|tally| (tally.asked, tally.answered))
}

#[test]
fn session_shows_which_direction_or_length_is_cut() {
    const ALL: (u8, u8) = (5, 5);
    const NONE: (u8, u8) = (5, 0);
    let cut = Link::overlay([false, true]);
    for (link, asked_by, replies, heard) in [
        (Link::default(), 0, [ALL; 6], 0..1_000),
        // The peer's report over the underlay shows the direction.
        (cut, 0, [NONE, NONE, ALL, NONE, NONE, ALL], 5_000..60_000),
        (cut, 1, [NONE, NONE, ALL, NONE, NONE, ALL], 0..2_500),
        (Link::mtu([1400; 2]), 0, [ALL, NONE, ALL, ALL, NONE, ALL], 0..2_500),
    ] {
        let mut world = cluster(3);
        world.set(0, 1, link);
        world.run(10 * S);
        let began = world.now.at;
        let probe = world.ask(asked_by, 1 - asked_by).unwrap();
        assert_eq!(counts(&probe), replies, "{link:?}");
        let hears_us = probe.peer.ages.hears_us_age_ms;
        assert!(hears_us.is_some_and(|ms| heard.contains(&ms)), "{link:?}: {hears_us:?}");
        assert_eq!(probe.answered_by, None);
        if replies == [ALL; 6] {
            assert!(world.now.at - began < S, "nothing is left to wait for");
            assert!(probe.small.rtt_us.is_some_and(|us| (900..1100).contains(&us)));
        }
    }
}

/// An on-demand probe session does not count a late reply to a probe of an earlier session.
#[test]
fn session_counts_no_answer_of_another_one() {
    let mut world = cluster(3);
    let late = Link { delay: Duration::from_millis(1100), ..Link::default() };
    world.set(0, 1, late);
    for _ in 0..2 {
        let probe = world.ask(0, 1).unwrap();
        let mut counts = counts(&probe).into_iter();
        assert!(counts.all(|(asked, answered)| asked == 5 && answered <= asked), "{probe:?}");
    }
    let other = world.ask(0, 2).unwrap();
    assert_eq!(other.small.answered, 5, "another peer is asked by itself");
}

#[test]
fn session_names_the_node_in_a_peers_place() {
    let mut world = cluster(3);
    world.takes_over(1, 2);
    let probe = world.ask(0, 1).unwrap();
    assert_eq!(probe.answered_by.as_deref(), Some("node-2"));
    let answered = [probe.small, probe.underlay].map(|tally| tally.answered);
    assert_eq!(answered, [0, 0], "{probe:?}");
}

#[test]
fn restarts_and_stalls_are_no_losses() {
    let mut world = World::new(3);
    world.run(60 * S);
    for round in 0..20u64 {
        world.deaf.insert(2);
        world.run(Duration::from_millis(300 + round * 70));
        world.restart(2);
        world.deaf.clear();
        world.run(Duration::from_millis(6_000 + round * 330));
    }
    assert!(world.notices.iter().all(|(_, notice)| notice.is == State::Well));
    // A node whose daemon is stopped for a while counts no losses.
    for _ in 0..10 {
        world.stall(0, 4 * S);
        world.run(9 * S);
    }
    let mut own = world.notices.iter().filter(|(node, _)| *node == 0);
    assert!(own.all(|(_, notice)| notice.is == State::Well));
}
