//! Tests which nodes of a simulated cluster detect the faults of one or many nodes, and how long the detection takes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

#[path = "simulation/world.rs"]
mod world;

use probing::node::Datagram;
use probing::schedule::{Ends, MAX_UNSAMPLED, Sample};
use probing::target::Path;
use probing::who::short;
use probing::wire::{Header, MessageKind, ROW, row_question};
use std::collections::BTreeSet;
use std::time::Duration;
use types::reachability::{Impact, State};
use world::{World, subnet};

const S: Duration = Duration::from_secs(1);

/// Returns the nodes that often probe a node: in large clusters, the nodes in its sample; in small clusters, all other nodes.
fn watchers(node: usize, count: usize) -> BTreeSet<usize> {
    let others = || (0..count).filter(|other| *other != node);
    if count - 1 <= MAX_UNSAMPLED {
        return others().collect();
    }
    let ends: Vec<Ends<usize>> = others()
        .map(|other| Ends {
            key: other,
            own: short(&subnet(node)),
            other: short(&subnet(other)),
        })
        .collect();
    let mut sample = Sample::new();
    sample.choose(Duration::ZERO, &ends);
    sample.members().iter().copied().collect()
}

/// Returns a cluster that has run for a minute of simulated time. In a large cluster, only `whom`, the nodes that
/// often probe `whom`, and some other nodes run the state machine.
fn cluster(count: usize, whom: &[usize]) -> World {
    let mut world = if count <= MAX_UNSAMPLED + 1 {
        World::new(count)
    } else {
        let mut real: BTreeSet<usize> = whom.iter().copied().collect();
        real.extend(whom.iter().flat_map(|node| watchers(*node, count)));
        let others = (0..count).step_by(count / 20);
        real.extend(others.take(50usize.saturating_sub(real.len())));
        World::with_stubs(count, &real)
    };
    world.run(60 * S);
    world
}

fn fails(world: &World, node: usize, on: usize) -> bool {
    world.state(node, on).impact() == Impact::All
}

/// Runs the cluster until `found` holds for each node in `nodes`. Returns the times until `found` holds for the first node and for the last node.
fn times(
    world: &mut World,
    nodes: &BTreeSet<usize>,
    found: impl Fn(&World, usize) -> bool,
) -> (Duration, Duration) {
    let start = world.now.at;
    let mut waiting = nodes.clone();
    let mut first = None;
    while !waiting.is_empty() && world.now.at - start < 120 * S {
        world.run(Duration::from_millis(250));
        let before = waiting.len();
        waiting.retain(|node| !found(world, *node));
        if waiting.len() < before && first.is_none() {
            first = Some(world.now.at - start);
        }
    }
    assert!(waiting.is_empty(), "not found by {waiting:?}");
    (first.unwrap(), world.now.at - start)
}

/// Maximum time until all nodes that often probe a dead node detect the fault. [`FIRST`] is the maximum time until the first node detects the fault.
const SOON: Duration = Duration::from_secs(15);
const FIRST: Duration = Duration::from_secs(10);

fn one_dead(count: usize, lost: u64) {
    let dead = count / 2;
    let mut world = cluster(count, &[dead]);
    world.lost = lost;
    world.run(60 * S);
    world.off.insert(dead);
    let (first, all) = times(&mut world, &watchers(dead, count), |world, node| {
        fails(world, node, dead)
    });
    println!(
        "one of {count} is dead: known to the first after {first:?}, to all that watch it after {all:?}"
    );
    assert!(first <= FIRST && all <= SOON, "{count}: {first:?}, {all:?}");
}

/// Cuts all links of one node and restores the links. Asserts that the node detects both changes in time.
fn all_links(count: usize, state: State, lost: u64) {
    let node = count / 3;
    let mut world = cluster(count, &[node]);
    world.lost = lost;
    world.run(60 * S);
    let affected = match state {
        State::CutOff => &mut world.off,
        State::OverlayCut => &mut world.cut_out,
        _ => &mut world.cut_in,
    };
    affected.insert(node);
    let alone = BTreeSet::from([node]);
    let number = |world: &World, state: State| world.tally(node).get(&state).copied().unwrap_or(0);
    let all = u32::try_from(count - 1).unwrap();
    let (_, took) = times(&mut world, &alone, |world, _| number(world, state) == all);
    world.run(60 * S);
    assert_eq!(number(&world, state), all, "{count}: it stays");
    let faults = world.faults(node);
    if count >= 14 {
        assert!(
            faults
                .iter()
                .all(|fault| fault.state == state && fault.asked == fault.failed),
            "{faults:?}"
        );
        assert_eq!(faults.len(), 1);
    }
    (world.off, world.cut_in, world.cut_out) = Default::default();
    let (_, mended) = times(&mut world, &alone, |world, _| number(world, state) == 0);
    println!("all links of one of {count}: {state} after {took:?}, mended after {mended:?}");
    assert!(took <= SOON, "{count} {state}: {took:?}");
    assert!(
        mended <= 2 * SOON,
        "{count} {state}: mended after {mended:?}"
    );
    assert!(world.faults(node).is_empty());
}

/// Switches many nodes off. Asserts that every running node that often probes a dead node soon detects a fault.
/// Asserts that in at most 2 % of all checks, one per node and second, a node reports a fault of all its peers.
fn many_dead(count: usize, dead: &BTreeSet<usize>) {
    let mut world = cluster(count, &[0, count - 1]);
    world.off = dead.clone();
    let watches = |node: &usize| {
        watchers(*node, count)
            .iter()
            .any(|other| dead.contains(other))
    };
    let living: BTreeSet<usize> = world
        .real()
        .into_iter()
        .filter(|node| !dead.contains(node) && watches(node))
        .collect();
    let (_, took) = times(&mut world, &living, |world, node| {
        world.tally(node).contains_key(&State::CutOff)
    });
    let (mut wrong, mut samples) = (0, 0);
    for _ in 0..120 {
        world.run(S);
        samples += living.len();
        let is_wrong = |node: &&usize| !world.faults(**node).is_empty();
        wrong += living.iter().filter(is_wrong).count();
    }
    println!(
        "{} of {count} are dead: known after {took:?}; {wrong} of {samples} times all were taken for dead",
        dead.len()
    );
    assert!(took <= SOON, "{count}: {took:?}");
    assert!(wrong * 50 <= samples, "{count}: {wrong} of {samples}");
}

#[test]
fn one_dead_node_is_known() {
    for count in world::sizes(&[3, 48, 100, 200, 1000]) {
        one_dead(count, 0);
    }
}

#[test]
fn node_knows_that_nothing_reaches_it_or_leaves_it() {
    for count in world::sizes(&[3, 14, 20, 48, 200, 1000]) {
        for state in [State::CutOff, State::OverlayCut, State::OneWay] {
            all_links(count, state, 0);
        }
    }
}

/// Nodes do not count losses during a fault as losses by chance.
#[test]
fn breaks_that_are_over_are_no_losses() {
    for state in [State::CutOff, State::OverlayCut, State::OneWay] {
        let (count, node) = (20, 7);
        let mut world = cluster(count, &[node]);
        for _ in 0..8 {
            let affected = match state {
                State::CutOff => &mut world.off,
                State::OverlayCut => &mut world.cut_out,
                _ => &mut world.cut_in,
            };
            affected.insert(node);
            world.run(20 * S);
            (world.off, world.cut_in, world.cut_out) = Default::default();
            world.run(20 * S);
            for of in 0..count {
                let tally = world.tally(of);
                assert_eq!(tally.len(), 1, "{state}: {of}: {tally:?}");
                assert!(tally.contains_key(&State::Well), "{state}: {of}: {tally:?}");
            }
        }
        let losses = world.view(node).losses;
        assert_eq!(losses.lost, 0, "{state}: {losses:?}");
    }
}

#[test]
fn rack_or_half_of_a_cluster_is_known() {
    for count in world::sizes(&[48, 100, 1000]) {
        many_dead(count, &(0..20).collect());
        many_dead(count, &(0..count / 2).collect());
    }
}

/// Two nodes that start among the leases of forty removed machines do not report that all peers have the same fault, once the two nodes have
/// exchanged probes.
#[test]
fn living_peer_among_dead_leases_is_no_part_of_a_common_fault() {
    let (mut wrong, mut samples) = (0, 0);
    for seed in 1..=world::seeds() {
        let mut world = World::with_seed(42, seed);
        world.off = (2..42).collect();
        let cut = |world: &World, node: usize| world.state(node, 1 - node) != State::Well;
        world.run(10 * S);
        for _ in 0..240 {
            world.run(S / 4);
            for node in [0, 1] {
                samples += 1;
                wrong += usize::from(cut(&world, node) || !world.faults(node).is_empty());
            }
        }
    }
    println!("{wrong} of {samples} times all were taken for dead");
    assert_eq!(wrong, 0, "of {samples}");
}

#[test]
fn faults_are_known_as_soon_where_one_in_a_hundred_is_lost() {
    for count in world::sizes(&[3, 48, 100, 200, 1000]) {
        one_dead(count, 10);
        for state in [State::CutOff, State::OverlayCut, State::OneWay] {
            all_links(count, state, 10);
        }
    }
}

#[test]
#[ignore = "minutes: a part of `make test-sim`"]
fn faults_among_five_thousand_are_known() {
    one_dead(5000, 0);
    all_links(5000, State::CutOff, 0);
    all_links(5000, State::OverlayCut, 0);
    many_dead(5000, &(0..2500).collect());
}

/// All nodes detect that a firewall drops the tunnel's port on all nodes.
#[test]
fn tunnel_that_is_blocked_everywhere_is_known_everywhere() {
    for count in world::sizes(&[48, 200]) {
        let mut world = cluster(count, &[]);
        world.cut_in = (0..count).collect();
        let nodes: BTreeSet<usize> = (0..count).collect();
        let cut = |world: &World, node: usize| {
            let tally = world.tally(node);
            usize::try_from(tally.get(&State::OverlayCut).copied().unwrap_or(0)).unwrap()
        };
        let (first, last) = times(&mut world, &nodes, |world, node| cut(world, node) > 0);
        println!("tunnel blocked at all of {count}: known after {first:?} to {last:?}");
        assert!(last <= SOON, "{last:?}");
        let (_, last) = times(&mut world, &nodes, |world, node| {
            cut(world, node) == count - 1
        });
        println!("  and that it is all of them after {last:?} more");
        assert!(last <= SOON, "{last:?}");
        world.cut_in.clear();
        let (_, last) = times(&mut world, &nodes, |world, node| cut(world, node) == 0);
        assert!(last <= 2 * SOON, "mended after {last:?}");
    }
}

/// A peer that replies does not end the common fault of all other peers. The verdict of the common fault does not apply to a peer that replies.
#[test]
fn peer_that_answers_is_no_part_of_a_common_fault() {
    let mut world = cluster(48, &[]);
    for other in 2..48 {
        let link = world::Link {
            overlay: [false; 2],
            ..world::Link::default()
        };
        world.set(1, other, link);
    }
    world.run(120 * S);
    for _ in 0..60 {
        world.run(S);
        assert_eq!(world.state(1, 0), State::Well);
        assert_eq!(world.tally(1).get(&State::OverlayCut), Some(&46));
    }
}

/// False hints that a peer in state `well` is unreachable cause only a few more probes and change no verdict.
#[test]
fn false_hints_cost_little_and_change_no_verdict() {
    let mut world = cluster(48, &[]);
    world.count();
    world.run(60 * S);
    let usual = world.counts[0].questions;
    world.count();
    for step in 0..600u64 {
        let about = short(&subnet(2 + usize::try_from(step % 40).unwrap()));
        let header = Header {
            kind: MessageKind::RowQuestion,
            length: u16::try_from(ROW).unwrap(),
            nonce: step,
            from: world.who(1),
            to: world.who(0),
        };
        let bytes = row_question(&header, Some(about));
        let datagram = Datagram {
            path: Path::Underlay,
            from: world.address(1),
            at: world.now.at,
            bytes: &bytes,
        };
        let answer = world.deliver(0, datagram);
        assert!(answer.is_none_or(|answer| answer.len() <= bytes.len()));
        world.run(S / 10);
    }
    let asked = world.counts[0].questions;
    assert!(asked > usual + 30, "hints are heard: {usual} and {asked}");
    assert!(
        asked <= usual + 6 + 90 + 10,
        "{usual} and {asked}: 1.5 a second"
    );
    assert_eq!(world.tally(0), [(State::Well, 47)].into());
    assert!(
        world
            .notices
            .iter()
            .all(|(_, notice)| notice.is == State::Well)
    );
}

/// Losses by chance cause no verdict that is worse than `loses-some`.
#[test]
fn losses_by_chance_are_no_other_fault() {
    for (lost, seed) in [(0, 1), (1, 2), (10, 3)] {
        let mut world = World::with_seed(30, seed);
        world.lost = lost;
        world.run(600 * S);
        let worse: Vec<_> = world
            .notices
            .iter()
            .filter(|(_, notice)| {
                notice.is > State::LosesSome || lost < 10 && notice.is > State::Well
            })
            .collect();
        assert!(worse.is_empty(), "{lost}: {worse:?}");
        assert!((0..30).all(|node| world.faults(node).is_empty()));
        let losses = world.view(0).losses;
        let loses = probing::verdict::loses_everywhere(losses.asked, losses.lost, losses.losers);
        assert_eq!(loses, lost == 10, "{losses:?}");
    }
}
