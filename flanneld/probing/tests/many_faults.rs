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

use probing::schedule::{Ends, MAX_UNSAMPLED, Sample};
use probing::target::Path;
use probing::who::short;
use probing::wire::MessageKind;
use std::collections::BTreeSet;
use std::time::Duration;
use types::reachability::{Impact, State};
use world::{Link, World, subnet};

const S: Duration = Duration::from_secs(1);

/// In large clusters, the nodes in its sample; in small clusters, all other nodes.
fn watchers(node: usize, count: usize) -> BTreeSet<usize> {
    let others = || (0..count).filter(|other| *other != node);
    if count - 1 <= MAX_UNSAMPLED {
        return others().collect();
    }
    let ends: Vec<Ends<usize>> = others()
        .map(|other| Ends { key: other, own: short(&subnet(node)), other: short(&subnet(other)) })
        .collect();
    let mut sample = Sample::new();
    sample.choose(Duration::ZERO, &ends);
    sample.members().iter().copied().collect()
}

/// A cluster that has run for a minute of simulated time. In a large cluster, only `whom`, the nodes that often probe
/// `whom`, and some other nodes run the state machine.
fn cluster(count: usize, whom: &[usize], lost: u64) -> World {
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
    world.lost = lost;
    world.run(60 * S);
    world
}

/// Number of a node's peers in a state.
fn number(world: &World, node: usize, state: State) -> usize {
    let tally = world.tally(node);
    usize::try_from(tally.get(&state).copied().unwrap_or(0)).unwrap()
}

/// Maximum time until all nodes that often probe a dead node detect the fault. [`FIRST`] is the maximum for the first
/// node.
const SOON: Duration = Duration::from_secs(15);
const FIRST: Duration = Duration::from_secs(10);

fn one_dead(count: usize, lost: u64) {
    let dead = count / 2;
    let mut world = cluster(count, &[dead], lost);
    world.off.insert(dead);
    let watchers = watchers(dead, count);
    let knows = |world: &World, node: &usize| world.state(*node, dead).impact() == Impact::All;
    let first = world.until(FIRST, |world| watchers.iter().any(|node| knows(world, node)));
    world.until(SOON - first, |world| watchers.iter().all(|node| knows(world, node)));
}

/// Sets the fault of all links of a node that has `state` as its verdict, or ends all faults.
fn set_fault(world: &mut World, node: usize, state: State) {
    (world.off, world.cut_in, world.cut_out) = Default::default();
    match state {
        State::CutOff => world.off.insert(node),
        State::OverlayCut => world.cut_out.insert(node),
        State::OneWay => world.cut_in.insert(node),
        _ => false,
    };
}

const FAULTS: [State; 3] = [State::CutOff, State::OverlayCut, State::OneWay];

/// Cuts all links of one node and restores the links. Asserts that the node detects both changes in time.
fn all_links(count: usize, state: State, lost: u64) {
    let node = count / 3;
    let mut world = cluster(count, &[node], lost);
    set_fault(&mut world, node, state);
    world.until(SOON, |world| number(world, node, state) == count - 1);
    world.run(60 * S);
    assert_eq!(number(&world, node, state), count - 1, "{count}: it stays");
    let faults = world.faults(node);
    if count >= 14 {
        assert!(
            faults.len() == 1
                && faults.iter().all(|fault| fault.state == state && fault.asked == fault.failed),
            "{faults:?}"
        );
    }
    set_fault(&mut world, node, State::Well);
    world.until(2 * SOON, |world| number(world, node, state) == 0);
    assert_eq!(world.faults(node), []);
}

/// Switches many nodes off. Asserts that every running node that often probes a dead node soon detects a fault.
/// Asserts that in at most 2 % of all checks, one per node and second, a node reports a fault of all its peers.
fn many_dead(count: usize, dead: usize) {
    let mut world = cluster(count, &[0, count - 1], 0);
    world.off = (0..dead).collect();
    let mut living = world.real();
    living.retain(|node| *node >= dead && watchers(*node, count).iter().any(|other| *other < dead));
    world.until(SOON, |world| living.iter().all(|node| number(world, *node, State::CutOff) > 0));
    let mut wrong = 0;
    for _ in 0..120 {
        world.run(S);
        wrong += living.iter().filter(|node| !world.faults(**node).is_empty()).count();
    }
    assert!(wrong * 50 <= 120 * living.len(), "{dead} of {count}: {wrong}");
}

/// The detection takes as long where one packet in a hundred is lost.
#[test]
fn one_dead_node_is_known() {
    for count in world::sizes(&[3, 48, 100, 200, 1000]) {
        one_dead(count, 0);
        one_dead(count, 10);
    }
}

#[test]
fn node_knows_that_nothing_reaches_it_or_leaves_it() {
    for count in world::sizes(&[3, 14, 20, 48, 200, 1000]) {
        for (state, lost) in FAULTS.into_iter().flat_map(|state| [(state, 0), (state, 10)]) {
            all_links(count, state, lost);
        }
    }
}

/// Nodes do not count losses during a fault as losses by chance.
#[test]
fn breaks_that_are_over_are_no_losses() {
    for state in FAULTS {
        let node = 7;
        let mut world = cluster(20, &[node], 0);
        for _ in 0..8 {
            set_fault(&mut world, node, state);
            world.run(20 * S);
            set_fault(&mut world, node, State::Well);
            world.run(20 * S);
            assert!(world.all(State::Well), "{state}");
        }
        let losses = world.view(node).losses;
        assert_eq!(losses.lost, 0, "{state}: {losses:?}");
    }
}

#[test]
fn rack_or_half_of_a_cluster_is_known() {
    for count in world::sizes(&[48, 100, 1000]) {
        many_dead(count, 20);
        many_dead(count, count / 2);
    }
}

/// Two nodes that start among the leases of forty removed machines do not report that all peers have the same fault,
/// once they have exchanged probes.
#[test]
fn living_peer_among_dead_leases_is_no_part_of_a_common_fault() {
    for seed in 1..=world::seeds() {
        let mut world = World::with_seed(42, seed);
        world.off = (2..42).collect();
        world.run(10 * S);
        for _ in 0..240 {
            world.run(S / 4);
            assert_eq!(world.pair(), [State::Well; 2], "seed {seed}");
            assert!(world.faults(0).is_empty() && world.faults(1).is_empty(), "seed {seed}");
        }
    }
}

#[test]
#[ignore = "minutes: a part of `make test-sim`"]
fn faults_among_five_thousand_are_known() {
    one_dead(5000, 0);
    all_links(5000, State::CutOff, 0);
    all_links(5000, State::OverlayCut, 0);
    many_dead(5000, 2500);
}

/// All nodes detect that a firewall drops the tunnel's port on all nodes.
#[test]
fn tunnel_that_is_blocked_everywhere_is_known_everywhere() {
    for count in world::sizes(&[48, 200]) {
        let mut world = cluster(count, &[], 0);
        world.cut_in = (0..count).collect();
        world.until(2 * SOON, |world| world.all(State::OverlayCut));
        world.cut_in.clear();
        world.until(2 * SOON, |world| {
            (0..count).all(|node| number(world, node, State::OverlayCut) == 0)
        });
    }
}

/// A peer that replies does not end the common fault of all others, and the common verdict does not apply to it.
#[test]
fn peer_that_answers_is_no_part_of_a_common_fault() {
    let mut world = cluster(48, &[], 0);
    for other in 2..48 {
        world.set(1, other, Link::overlay([false; 2]));
    }
    world.run(120 * S);
    for _ in 0..60 {
        world.run(S);
        let cut = number(&world, 1, State::OverlayCut);
        assert_eq!((world.state(1, 0), cut), (State::Well, 46));
    }
}

/// False hints that a peer in state `well` is unreachable cause only a few more probes and change no verdict.
#[test]
fn false_hints_cost_little_and_change_no_verdict() {
    let mut world = cluster(48, &[], 0);
    world.count();
    world.run(60 * S);
    let usual = world.counts[0].questions;
    world.count();
    for step in 0..600usize {
        let about = short(&subnet(2 + step % 40));
        let nonce = u64::try_from(step).unwrap();
        let bytes = world.forge(MessageKind::RowQuestion, nonce, 1, 0, Some(about));
        world.inject(Path::Underlay, 1, 0, &bytes);
        world.run(S / 10);
    }
    let asked = world.counts[0].questions;
    assert!(asked > usual + 30, "hints are heard: {usual} and {asked}");
    assert!(asked <= usual + 6 + 90 + 10, "{usual} and {asked}: 1.5 a second");
    let mut notices = world.notices.iter();
    assert!(notices.all(|(_, notice)| notice.is == State::Well));
}

/// Losses by chance cause no verdict that is worse than `loses-some`.
#[test]
fn losses_by_chance_are_no_other_fault() {
    for (lost, seed) in [(0, 1), (1, 2), (10, 3)] {
        let mut world = World::with_seed(30, seed);
        world.lost = lost;
        world.run(600 * S);
        let worst = if lost < 10 { State::Well } else { State::LosesSome };
        let worse = world.notices.iter().find(|(_, notice)| notice.is > worst);
        assert!(worse.is_none(), "{lost}: {worse:?}");
        assert!((0..30).all(|node| world.faults(node).is_empty()));
        let losses = world.view(0).losses;
        let loses = probing::verdict::loses_everywhere(losses.asked, losses.lost, losses.losers);
        assert_eq!(loses, lost == 10, "{losses:?}");
    }
}
