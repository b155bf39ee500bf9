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

use probing::node::{Client, Datagram};
use probing::schedule::Walk;
use probing::target::Path;
use probing::view::Probe;
use probing::wire::{ECHO, Echo, Header, Message, MessageKind, ROW, echo, parse, row_answer};
use simulation::world::{Link, World};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use types::reachability::State;

const S: Duration = Duration::from_secs(1);

/// Returns the verdicts of one node, in the order of its peers.
fn states(world: &World, node: usize) -> Vec<State> {
    world
        .view(node)
        .peers
        .iter()
        .map(|peer| peer.state)
        .collect()
}

#[test]
fn healthy_cluster_is_well_and_only_well() {
    for nodes in [2, 3, 10] {
        let mut world = World::new(nodes);
        world.run(40 * S);
        for node in 0..nodes {
            assert!(
                states(&world, node)
                    .iter()
                    .all(|state| *state == State::Well),
                "{nodes}: {:?}",
                states(&world, node)
            );
            let view = world.view(node);
            assert!(
                view.peers
                    .iter()
                    .all(|peer| peer.carries == Some(1450) && peer.lost == 0),
                "{view:?}"
            );
            assert!(
                view.peers
                    .iter()
                    .all(|peer| peer.rtt_us.is_some_and(|us| (900..1100).contains(&us))),
                "{view:?}"
            );
            assert!(
                view.peers
                    .iter()
                    .all(|peer| peer.clock_offset_ms.is_some_and(|ms| ms.abs() <= 1)),
                "{view:?}"
            );
        }
        world.run(600 * S);
        assert!(
            world
                .notices
                .iter()
                .all(|(_, notice)| notice.is == State::Well && notice.was == State::Unknown),
            "{:?}",
            world.notices
        );
    }
}

/// Cuts the link between two nodes, and waits until each of the two nodes has its expected verdict. Returns the time until both nodes have their expected verdicts.
fn time_until(link: Link, near: State, far: State) -> Duration {
    let mut world = World::new(3);
    world.run(20 * S);
    world.set(0, 1, link);
    let took = world.until(30 * S, |world| {
        world.state(0, 1) == near && world.state(1, 0) == far
    });
    let took = took.unwrap_or_else(|| {
        panic!(
            "{link:?}: {:?} and {:?}",
            world.state(0, 1),
            world.state(1, 0)
        )
    });
    world.run(30 * S);
    assert_eq!(
        (world.state(0, 1), world.state(1, 0)),
        (near, far),
        "{link:?}: it stays"
    );
    assert_eq!(
        (world.state(0, 2), world.state(1, 2), world.state(2, 0)),
        (State::Well, State::Well, State::Well),
        "{link:?}"
    );
    world.set(0, 1, Link::default());
    let mended = world.until(30 * S, |world| {
        world.state(0, 1) == State::Well && world.state(1, 0) == State::Well
    });
    let mended = mended.unwrap_or_else(|| {
        panic!(
            "{link:?} mended: {:?} and {:?}",
            world.state(0, 1),
            world.state(1, 0)
        )
    });
    assert!(mended < 12 * S, "{link:?}: mended after {mended:?}");
    took
}

#[test]
fn fault_has_its_verdict_at_both_ends() {
    let whole = Link::default();
    for (link, near, far) in [
        (
            Link {
                overlay: [false; 2],
                ..whole
            },
            State::OverlayCut,
            State::OverlayCut,
        ),
        (
            Link {
                overlay: [false; 2],
                underlay: [false; 2],
                ..whole
            },
            State::CutOff,
            State::CutOff,
        ),
        // What node 0 sends does not arrive at node 1: neither its probes nor its replies.
        (
            Link {
                overlay: [false, true],
                ..whole
            },
            State::OverlayCut,
            State::OneWay,
        ),
        (
            Link {
                overlay: [true, false],
                ..whole
            },
            State::OneWay,
            State::OverlayCut,
        ),
        (
            Link {
                mtu: [1400, 1400],
                ..whole
            },
            State::SmallMtu,
            State::SmallMtu,
        ),
        (
            Link {
                mtu: [1400, 9000],
                ..whole
            },
            State::SmallMtu,
            State::Well,
        ),
    ] {
        let took = time_until(link, near, far);
        assert!(took < 11 * S, "{link:?}: after {took:?}");
    }
}

/// If the tunnel is encrypted, only pings use the underlay, even during a fault and while a client views reports.
#[test]
fn encrypted_tunnel_sends_no_question_in_the_clear() {
    let mut world = World::encrypted(3);
    world.run(20 * S);
    assert_eq!(states(&world, 0), [State::Well, State::Well]);
    world.look(0);
    world.set(
        0,
        1,
        Link {
            overlay: [false, false],
            ..Link::default()
        },
    );
    let found = world.until(30 * S, |world| {
        world.state(0, 1) == State::OverlayCut && world.state(1, 0) == State::OverlayCut
    });
    assert!(
        found.is_some(),
        "{:?} {:?}",
        states(&world, 0),
        states(&world, 1)
    );
    let probe = world.ask(0, 1).unwrap();
    assert!(
        probe.underlay.asked == 0 && probe.underlay_ping.answered > 0 && probe.small.answered == 0,
        "{probe:?}"
    );
    world.set(
        0,
        1,
        Link {
            overlay: [false, false],
            underlay: [false, false],
            ..Link::default()
        },
    );
    assert!(
        world
            .until(60 * S, |world| world.state(0, 1) == State::CutOff)
            .is_some(),
        "{:?}",
        states(&world, 0)
    );
    world.set(0, 1, Link::default());
    assert!(
        world
            .until(60 * S, |world| states(world, 0)
                == [State::Well, State::Well])
            .is_some(),
        "{:?}",
        states(&world, 0)
    );
    assert_eq!(world.underlay, 0);
    let mut clear = World::new(2);
    clear.run(20 * S);
    assert!(clear.underlay > 0, "the count counts");
}

#[test]
fn usable_mtu_is_found_to_the_byte() {
    let mut world = World::new(2);
    world.run(20 * S);
    for mtu in [1400, 1449, 577, 1312] {
        world.set(
            0,
            1,
            Link {
                mtu: [mtu; 2],
                ..Link::default()
            },
        );
        let found = |world: &World| {
            world.view(0).peers[0].carries == Some(mtu)
                && world.view(1).peers[0].carries == Some(mtu)
        };
        assert!(
            world.until(120 * S, found).is_some(),
            "{mtu}: {:?}",
            world.view(0).peers[0]
        );
        assert_eq!(world.state(0, 1), State::SmallMtu);
    }
    world.set(0, 1, Link::default());
    assert!(
        world
            .until(20 * S, |world| world.state(0, 1) == State::Well
                && world.view(0).peers[0].carries == Some(1450))
            .is_some()
    );
}

#[test]
fn losing_one_in_three_is_lossy_and_no_worse() {
    for seed in 0..16 {
        let mut world = World::with_seed(3, seed);
        world.run(20 * S);
        world.set(
            0,
            1,
            Link {
                lost: 333,
                ..Link::default()
            },
        );
        let seen = |world: &World| {
            world.state(0, 1) == State::LosesSome && world.state(1, 0) == State::LosesSome
        };
        assert!(
            world.until(150 * S, seen).is_some(),
            "seed {seed}: {:?} {:?}",
            world.state(0, 1),
            world.state(1, 0)
        );
        world.run(300 * S);
        let worse: BTreeSet<State> = world
            .notices
            .iter()
            .map(|(_, notice)| notice.is)
            .filter(|state| *state > State::SmallMtu)
            .collect();
        assert!(worse.is_empty(), "seed {seed}: {worse:?}");
        assert!([State::Well, State::LosesSome].contains(&world.state(0, 2)));
    }
}

#[test]
fn filtered_port_and_go_flannel_are_well_by_ping() {
    let mut world = World::new(3);
    // Node 2 runs no prober.
    world.deaf.insert(2);
    assert!(
        world
            .until(60 * S, |world| world
                .view(0)
                .peers
                .iter()
                .all(|peer| peer.state == State::Well))
            .is_some()
    );
    let view = world.view(0);
    assert_eq!(
        view.peers
            .iter()
            .map(|peer| peer.ping_only)
            .collect::<Vec<_>>(),
        [false, true]
    );
    world.run(60 * S);
    // Its MTU is known nevertheless.
    assert_eq!(world.view(0).peers[1].carries, Some(1450));
    world.set(
        0,
        2,
        Link {
            mtu: [1400; 2],
            ..Link::default()
        },
    );
    let seen = |world: &World| {
        world.view(0).peers[1].state == State::SmallMtu
            && world.view(0).peers[1].carries == Some(1400)
    };
    assert!(
        world.until(120 * S, seen).is_some(),
        "{:?}",
        world.view(0).peers[1]
    );
    world.set(0, 2, Link::default());
    // The prober of node 2 starts. Its probes make its peers probe it at once.
    world.deaf.clear();
    assert!(
        world
            .until(30 * S, |world| world.view(0).peers[1].state == State::Well
                && !world.view(0).peers[1].ping_only)
            .is_some()
    );
    // Firewalls drop the probe port everywhere. No peer is broken, now or later.
    world.filtered = true;
    let before = world.notices.len();
    assert!(
        world
            .until(60 * S, |world| (0..3).all(|node| world
                .view(node)
                .peers
                .iter()
                .all(|peer| peer.ping_only)))
            .is_some()
    );
    world.run(120 * S);
    assert_eq!(
        world.notices.len(),
        before,
        "{:?}",
        &world.notices[before..]
    );
    // The overlay is also cut.
    world.set(
        0,
        1,
        Link {
            overlay: [false; 2],
            ..Link::default()
        },
    );
    assert!(
        world
            .until(30 * S, |world| world.state(0, 1) == State::OverlayCut
                && world.view(0).peers[0].ping_only)
            .is_some()
    );
}

#[test]
fn unanswered_pings_change_nothing_when_probes_are_answered() {
    let mut world = World::new(3);
    world.no_ping = true;
    world.run(120 * S);
    assert!((0..3).all(|node| {
        states(&world, node)
            .iter()
            .all(|state| *state == State::Well)
    }));
}

#[test]
fn restarts_and_stalls_are_no_losses() {
    let mut world = World::new(3);
    world.run(60 * S);
    let before = world.notices.len();
    for round in 0..20u64 {
        world.deaf.insert(2);
        world.run(Duration::from_millis(300 + round * 70));
        world.restart(2);
        world.deaf.clear();
        world.run(Duration::from_millis(6_000 + round * 330));
    }
    let bad: Vec<_> = world.notices[before..]
        .iter()
        .filter(|(_, notice)| notice.is != State::Well)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    // A node whose daemon is stopped for a while counts no losses.
    let before = world.notices.len();
    for _ in 0..10 {
        world.stall(0, 4 * S);
        world.run(9 * S);
    }
    let bad: Vec<_> = world.notices[before..]
        .iter()
        .filter(|(node, notice)| *node == 0 && notice.is != State::Well)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn other_node_in_a_peers_place_is_noticed() {
    let mut world = World::new(3);
    world.run(20 * S);
    // Node 2 replies at node 1's address.
    world.takes_over(1, 2);
    assert!(
        world
            .until(30 * S, |world| world.state(0, 1) == State::WrongNode)
            .is_some(),
        "{:?}",
        world.state(0, 1)
    );
    let view = world.view(0);
    assert_eq!(view.peers[0].answered_by.as_deref(), Some("node-2"));
    assert_eq!(world.state(0, 2), State::Well);
}

#[test]
fn slow_peer_is_slow_among_fast_ones() {
    let mut world = World::new(5);
    world.run(30 * S);
    world.set(
        0,
        1,
        Link {
            delay: Duration::from_millis(20),
            ..Link::default()
        },
    );
    assert!(
        world
            .until(120 * S, |world| world.state(0, 1) == State::Slow
                && world.state(1, 0) == State::Slow)
            .is_some()
    );
    assert_eq!(world.state(0, 2), State::Well);
}

#[test]
fn open_page_requests_rows_more_rarely_than_commands() {
    const NODES: usize = 100;
    let [page, command] = [Client::Page, Client::Command].map(|client| {
        let mut world = World::new(NODES);
        world.run(30 * S);
        let before = world.sent_rows;
        for _ in 0..20 {
            world.look_as(client, 0);
            world.run(2 * S);
        }
        world.sent_rows - before
    });
    // 40 seconds: a round of 99 rows every 9.9 seconds, and every 5 seconds.
    assert!((297..=500).contains(&page), "{page} for a page");
    assert!(
        command > page + 200,
        "{command} for a command, {page} for a page"
    );
}

#[test]
fn rows_are_requested_only_while_they_are_viewed() {
    let mut world = World::new(10);
    world.set(
        3,
        4,
        Link {
            overlay: [false; 2],
            ..Link::default()
        },
    );
    world.run(60 * S);
    let busy = world.sent_rows;
    assert!(
        busy <= 20 * 10,
        "{busy}: some are asked about a peer in trouble"
    );
    world.run(25 * S);
    world.look(0);
    world.run(3 * S);
    let view = world.view(0);
    assert_eq!(
        view.rows
            .iter()
            .filter(|row| row.answered_age_ms.is_some())
            .count(),
        9
    );
    let of_3 = view
        .rows
        .iter()
        .find(|row| row.name.as_deref() == Some("node-3"))
        .unwrap();
    assert_eq!(of_3.counts.get(&State::OverlayCut), Some(&1));
    assert_eq!(
        of_3.peers
            .iter()
            .filter(|cell| cell.state == State::OverlayCut)
            .count(),
        1
    );
    // Node 0 itself is among them.
    assert_eq!(of_3.peers.len(), 9);
    // A view has other nodes' verdicts on a peer in trouble, here those of both ends of the link.
    assert!(world.view(3).peers.iter().any(|peer| {
        peer.state == State::OverlayCut
            && peer
                .others
                .iter()
                .any(|opinion| opinion.state == State::Well)
    }));
    world.run(20 * S);
    let (before, others) = (world.sent_rows, world.rows_of_trouble());
    world.run(25 * S);
    assert!(world.sent_rows - before <= others, "nobody looks any more");
    world.run(320 * S);
    world.look(1);
    world.run(S);
    assert!(
        world
            .view(0)
            .rows
            .iter()
            .all(|row| row.answered_age_ms.is_none_or(|age| age <= 300_000))
    );
}

/// Returns a message that an attacker may forge, with any nonce and any node numbers.
fn forged(kind: MessageKind, nonce: u64, from: u64, to: u64) -> Vec<u8> {
    let length = if kind == MessageKind::RowQuestion {
        ROW
    } else {
        ECHO
    };
    let header = Header {
        kind,
        length: u16::try_from(length).unwrap(),
        nonce,
        from,
        to,
    };
    match kind {
        MessageKind::EchoQuestion | MessageKind::EchoAnswer | MessageKind::PodCall => {
            echo(&header, &Echo::default(), ECHO)
        }
        MessageKind::PodQuestion => probing::pods::question(nonce, from),
        MessageKind::RowQuestion => probing::wire::row_question(&header, Some(7)),
        MessageKind::RowAnswer => row_answer(&header, &[0xff; 100]).unwrap(),
    }
}

#[test]
fn hostile_messages_change_no_other_peers_verdict() {
    let mut world = World::new(4);
    world.run(20 * S);
    let before: Vec<Vec<State>> = (0..4).map(|node| states(&world, node)).collect();
    let pod: IpAddr = "10.5.2.7".parse().unwrap();
    let (mut answers, mut bytes_in, mut bytes_out) = (0, 0, 0);
    let who = |node: usize| world.who(node);
    let (of_0, of_1, of_2) = (who(0), who(1), who(2));
    for step in 0..20_000u64 {
        let sources = [
            pod,
            world.address(1),
            world.overlay(1),
            "198.51.100.9".parse().unwrap(),
        ];
        let kinds = [
            MessageKind::EchoQuestion,
            MessageKind::EchoAnswer,
            MessageKind::RowQuestion,
            MessageKind::RowAnswer,
            MessageKind::PodQuestion,
            MessageKind::PodCall,
        ];
        let from = sources[usize::try_from(step % 4).unwrap()];
        let kind = kinds[usize::try_from(step / 4 % 6).unwrap()];
        let mut message = forged(
            kind,
            step,
            [of_1, of_2, step][usize::try_from(step % 3).unwrap()],
            of_0,
        );
        if step % 7 == 0 {
            let place = usize::try_from(step).unwrap() % message.len();
            message[place] ^= 0x55;
        }
        let path = if step % 2 == 0 {
            Path::Overlay
        } else {
            Path::Underlay
        };
        let datagram = Datagram {
            path,
            from,
            at: world.now.at,
            bytes: &message,
        };
        let answer = world.deliver(0, datagram);
        bytes_in += message.len();
        if let Some(answer) = answer {
            assert!(
                from == world.address(1) || from == world.overlay(1),
                "{from} has no lease"
            );
            assert!(answer.len() <= message.len());
            assert!(!parse(&answer).is_some_and(
                |answer| matches!(answer, Message::Echo(header, _) if header.kind.asks())
            ));
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
    let after: Vec<Vec<State>> = (0..4).map(|node| states(&world, node)).collect();
    assert_eq!(before, after);
    let traffic = world.view(0).traffic;
    assert!(
        traffic.junk > 1000 && traffic.strangers > 1000 && traffic.limited > 1000,
        "{traffic:?}"
    );
}

/// A flood of probes with a peer's forged address does not use up the rate limit for replies to the peer. The peer starts before or during the flood.
#[test]
fn forged_flood_costs_the_peer_no_answer() {
    let mut world = World::new(3);
    world.run(20 * S);
    let (of_0, of_1) = (world.who(0), world.who(1));
    let flood = |world: &mut World, time: Duration, nodes: &[usize]| {
        let (mut nonce, end) = (0u64, world.now.at + time);
        while world.now.at < end {
            for _ in 0..4 {
                nonce += 1;
                let length = u16::try_from(ECHO).unwrap();
                let header = Header {
                    kind: MessageKind::EchoQuestion,
                    length,
                    nonce,
                    from: of_1,
                    to: of_0,
                };
                let guess = u32::try_from(nonce).unwrap();
                let message = echo(
                    &header,
                    &Echo {
                        token: Some(guess),
                        repeats: Some(guess),
                        ..Echo::default()
                    },
                    ECHO,
                );
                for (path, from) in [
                    (Path::Overlay, world.overlay(1)),
                    (Path::Underlay, world.address(1)),
                ] {
                    world.deliver(
                        0,
                        Datagram {
                            path,
                            from,
                            at: world.now.at,
                            bytes: &message,
                        },
                    );
                }
            }
            world.run(Duration::from_millis(2));
            for node in nodes {
                assert!(
                    states(world, *node)
                        .iter()
                        .all(|state| *state == State::Well),
                    "{node}: {:?}",
                    world.view(*node).peers
                );
                assert!(
                    world
                        .view(*node)
                        .peers
                        .iter()
                        .all(|peer| peer.lost == 0 && !peer.ping_only),
                    "{:?}",
                    world.view(*node).peers
                );
            }
        }
    };
    flood(&mut world, 60 * S, &[0, 1, 2]);
    assert!(
        world.view(0).traffic.limited > 100_000,
        "{:?}",
        world.view(0).traffic
    );
    // A restarted node knows no token. It gets one with the first probe.
    world.restart(1);
    world.run(20 * S);
    flood(&mut world, 30 * S, &[0, 1, 2]);
    // A node that restarts during the flood gets forged tokens. One or two probes of the peer itself correct that.
    for node in [0, 1] {
        world.restart(node);
        flood(&mut world, 200 * S, &[]);
        flood(&mut world, 30 * S, &[0, 1, 2]);
    }
}

/// Forged probes do not change the verdict `overlay-cut` into `one-way`, although a pod with raw sockets can forge a peer's overlay address.
#[test]
fn forged_questions_do_not_turn_a_cut_into_one_way() {
    let mut world = World::new(3);
    world.run(20 * S);
    world.set(
        0,
        1,
        Link {
            overlay: [false; 2],
            ..Link::default()
        },
    );
    let (of_0, of_1) = (world.who(0), world.who(1));
    let forge = |world: &mut World, time: Duration| {
        let (mut nonce, end) = (0u64, world.now.at + time);
        while world.now.at < end {
            nonce += 1;
            let header = Header {
                kind: MessageKind::EchoQuestion,
                length: u16::try_from(ECHO).unwrap(),
                nonce,
                from: of_1,
                to: of_0,
            };
            let guess = Some(u32::try_from(nonce).unwrap()).filter(|_| nonce.is_multiple_of(2));
            let message = echo(
                &header,
                &Echo {
                    token: guess,
                    repeats: guess,
                    ..Echo::default()
                },
                ECHO,
            );
            world.deliver(
                0,
                Datagram {
                    path: Path::Overlay,
                    from: world.overlay(1),
                    at: world.now.at,
                    bytes: &message,
                },
            );
            world.run(Duration::from_millis(200));
        }
    };
    forge(&mut world, 60 * S);
    assert_eq!(
        (world.state(0, 1), world.state(1, 0)),
        (State::OverlayCut, State::OverlayCut)
    );
    // A restarted daemon knows no token. It learns the token over the underlay.
    world.restart(1);
    forge(&mut world, 90 * S);
    assert_eq!(
        (world.state(0, 1), world.state(1, 0)),
        (State::OverlayCut, State::OverlayCut)
    );
    // A restarted daemon is not sure of its peer until that peer has repeated its token.
    world.restart(0);
    forge(&mut world, 90 * S);
    assert_eq!(
        (world.state(0, 1), world.state(1, 0)),
        (State::OverlayCut, State::OverlayCut)
    );
    world.set(0, 1, Link::default());
    let mended = world.until(30 * S, |world| {
        world.state(0, 1) == State::Well && world.state(1, 0) == State::Well
    });
    assert!(
        mended.is_some(),
        "{:?} and {:?}",
        world.state(0, 1),
        world.state(1, 0)
    );
}

#[test]
fn false_row_is_only_the_claim_of_one_node() {
    let mut world = World::new(4);
    world.run(20 * S);
    world.liar = Some(1);
    world.look(0);
    world.run(3 * S);
    let view = world.view(0);
    let lies = view
        .rows
        .iter()
        .find(|row| row.name.as_deref() == Some("node-1"))
        .unwrap();
    assert_eq!(lies.counts.get(&State::CutOff), Some(&u32::MAX));
    assert_eq!(
        lies.own.as_ref().unwrap().gravest,
        None,
        "no text but the name of a check"
    );
    assert!(
        view.peers
            .iter()
            .all(|peer| peer.state == State::Well && peer.others.is_empty())
    );
}

/// The size of the view is bounded for any number and size of reports: the view keeps only the worst peers of each report.
#[test]
fn rows_of_many_nodes_are_bounded() {
    let mut world = World::new(300);
    world.set(
        7,
        8,
        Link {
            overlay: [false; 2],
            ..Link::default()
        },
    );
    world.run(90 * S);
    world.look(0);
    world.run(6 * S);
    let view = world.view(0);
    assert!(
        view.rows.len() == 299 && view.rows.iter().all(|row| row.answered_age_ms.is_some()),
        "{}",
        view.rows.len()
    );
    assert!(
        view.rows
            .iter()
            .all(|row| row.counts.values().sum::<u32>() == 299),
        "the counts are those of all"
    );
    let cells: usize = view.rows.iter().map(|row| row.peers.len()).sum();
    assert!((10_000..=20_200).contains(&cells), "{cells}");
    let of_7 = view
        .rows
        .iter()
        .find(|row| row.name.as_deref() == Some("node-7"))
        .unwrap();
    assert_eq!(
        of_7.peers.first().map(|cell| cell.state),
        Some(State::OverlayCut),
        "the worst comes first"
    );
}

/// Checks that each node of an idle cluster sends few probes and bytes, and that each node probes each peer once per cycle.
fn costs(nodes: usize, cycles: u32, link: Link) {
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
    for (node, count) in world.counts.iter().enumerate() {
        let (questions, bytes) = (
            f64::from(count.questions) / seconds,
            count.bytes as f64 / seconds,
        );
        assert!(
            questions <= 8.0 && bytes <= 2_000.0,
            "node {node} of {nodes}: {questions:.1} questions and {bytes:.0} bytes a second"
        );
        assert!(
            count.most_in_a_second <= 8 + 2,
            "node {node} of {nodes}: {} questions in one second",
            count.most_in_a_second
        );
        assert_eq!(
            count.asked.len(),
            nodes - 1,
            "node {node} of {nodes}: every direction is asked in each cycle"
        );
        assert!(
            count.most_received_in_a_second <= 25,
            "node {node} of {nodes} was asked {} times in one second",
            count.most_received_in_a_second
        );
    }
}

#[test]
fn ten_idle_nodes_send_little() {
    costs(10, 5, Link::default());
}

/// A firewall that drops all packets over the underlay except tunnel packets does not make each probe start a whole round of probes.
#[test]
fn cluster_without_underlay_probes_costs_no_more() {
    costs(
        40,
        3,
        Link {
            underlay: [false; 2],
            ..Link::default()
        },
    );
}

#[test]
fn hundreds_of_idle_nodes_send_little() {
    for count in simulation::world::sizes(&[100, 300, 1000]) {
        costs(count, 1, Link::default());
    }
}

/// Ten thousand nodes are too many to simulate with all their state. The test simulates only the scheduled probes of some nodes, for a whole cycle.
#[test]
fn ten_thousand_nodes_spread_their_questions_over_a_cycle() {
    const NODES: usize = 10_000;
    // The scheduled probes of the first nodes, to all other nodes.
    let walkers = simulation::world::sizes(&[100, 1000]).last().unwrap();
    let cycle = probing::schedule::cycle(NODES - 1, 0);
    let seconds = usize::try_from(cycle.as_secs()).unwrap() * 12 / 10;
    let numbers: Vec<u64> = (0..NODES)
        .map(|node| probing::who::mix([u64::try_from(node).unwrap(), 3, 4]))
        .collect();
    let mut received = vec![0u8; NODES * seconds];
    for walker in 0..walkers {
        let mut walk = Walk::new(numbers[walker], Duration::ZERO);
        let mut asked = vec![false; NODES];
        let mut last = Duration::ZERO;
        for _ in 1..NODES {
            let now = walk.next();
            assert!(
                last.is_zero() || now - last >= Duration::from_millis(200),
                "at most 5 a second"
            );
            last = now;
            let peers = || {
                (0..NODES)
                    .filter(|peer| *peer != walker)
                    .map(|peer| (peer, numbers[peer]))
            };
            let peer = walk.turn(now, peers).unwrap();
            assert!(
                !std::mem::replace(&mut asked[peer], true),
                "{walker} asks {peer} twice in one cycle"
            );
            let second = usize::try_from(now.as_secs()).unwrap();
            let count = &mut received[peer * seconds + second];
            *count = count.saturating_add(1);
        }
        assert_eq!(
            asked.iter().filter(|asked| !**asked).count(),
            1,
            "itself alone is not asked"
        );
        assert!(last < cycle * 12 / 10, "{last:?}");
    }
    let most = received.iter().copied().max().unwrap_or(0);
    assert!(most <= 10, "a node was asked {most} times in one second");
}

/// Returns, for each kind of probe, how many probes a session sent and how many of these probes got a reply.
fn counts(probe: &Probe) -> [(u8, u8); 6] {
    [
        probe.small,
        probe.full,
        probe.underlay,
        probe.ping,
        probe.full_ping,
        probe.underlay_ping,
    ]
    .map(|tally| (tally.asked, tally.answered))
}

const ALL: (u8, u8) = (5, 5);
const NONE: (u8, u8) = (5, 0);

#[test]
fn session_asks_over_all_paths_at_once() {
    let mut world = World::new(3);
    world.run(20 * S);
    let began = world.now.at;
    let well = world.ask(0, 1).unwrap();
    assert_eq!(counts(&well), [ALL; 6], "{well:?}");
    assert!(world.now.at - began < S, "nothing is left to wait for");
    assert!(
        well.small
            .rtt_us
            .is_some_and(|us| (900..1100).contains(&us))
            && well.answered_by.is_none(),
        "{well:?}"
    );
    assert!(
        well.peer.ages.hears_us_age_ms.is_some_and(|ms| ms < 1000),
        "{well:?}"
    );
}

#[test]
fn session_shows_which_direction_is_cut() {
    let mut world = World::new(3);
    world.run(20 * S);
    // The peer's report over the underlay shows the direction.
    world.set(
        0,
        1,
        Link {
            overlay: [false, true],
            ..Link::default()
        },
    );
    world.run(10 * S);
    let cut = world.ask(0, 1).unwrap();
    assert_eq!(counts(&cut), [NONE, NONE, ALL, NONE, NONE, ALL], "{cut:?}");
    assert!(
        cut.peer.ages.hears_us_age_ms.is_some_and(|ms| ms > 5_000),
        "{cut:?}"
    );
    let one_way = world.ask(1, 0).unwrap();
    assert_eq!(counts(&one_way)[..3], [NONE, NONE, ALL], "{one_way:?}");
    assert!(
        one_way
            .peer
            .ages
            .hears_us_age_ms
            .is_some_and(|ms| ms < 2_500),
        "{one_way:?}"
    );
}

#[test]
fn session_loses_long_questions_where_the_mtu_is_small() {
    let mut world = World::new(3);
    world.run(20 * S);
    world.set(
        0,
        1,
        Link {
            mtu: [1400; 2],
            ..Link::default()
        },
    );
    let small = world.ask(0, 1).unwrap();
    assert_eq!(
        counts(&small),
        [ALL, NONE, ALL, ALL, NONE, ALL],
        "{small:?}"
    );
}

/// An on-demand probe session does not count a late reply to a probe of an earlier session.
#[test]
fn session_counts_no_answer_of_another_one() {
    let mut world = World::new(3);
    world.run(20 * S);
    world.set(
        0,
        1,
        Link {
            delay: Duration::from_millis(1100),
            ..Link::default()
        },
    );
    let late = world.ask(0, 1).unwrap();
    let again = world.ask(0, 1).unwrap();
    for probe in [late, again] {
        assert!(
            counts(&probe)
                .iter()
                .all(|(asked, answered)| *asked == 5 && answered <= asked),
            "{probe:?}"
        );
    }
    assert!(
        world
            .ask(0, 2)
            .is_some_and(|probe| probe.small.answered == 5),
        "another peer is asked by itself"
    );
}

#[test]
fn session_names_the_node_in_a_peers_place() {
    let mut world = World::new(3);
    world.run(20 * S);
    world.takes_over(1, 2);
    let probe = world.ask(0, 1).unwrap();
    assert_eq!(probe.answered_by.as_deref(), Some("node-2"), "{probe:?}");
    assert_eq!(
        (probe.small.answered, probe.underlay.answered),
        (0, 0),
        "{probe:?}"
    );
}
