//! Simulates whole clusters for a day without sockets, with restarts, stalls, clock changes, floods and random
//! losses. The tests assert that no peer gets a false verdict, and that nodes detect a partition and its end.

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

use probing::node::Notice;
use probing::target::Path;
use probing::who::{mix, short};
use probing::wire::MessageKind;
use std::collections::BTreeSet;
use std::time::Duration;
use types::reachability::State;
use world::{Link, World, subnet};

const S: Duration = Duration::from_secs(1);
const HOUR: u64 = 3600;

/// A cluster in which up to fifty nodes run the state machine.
struct Day {
    world: World,
    nodes: Vec<usize>,
    number: u64,
}

impl Day {
    fn new(count: usize, lost: u64) -> Self {
        let mut world = if count <= 50 {
            World::new(count)
        } else {
            let real: BTreeSet<usize> = (0..count).step_by(count / 50).take(50).collect();
            World::with_stubs(count, &real)
        };
        world.lost = lost;
        world.run(60 * S);
        let nodes = world.real();
        Self { world, nodes, number: 0 }
    }

    fn random(&mut self) -> u64 {
        self.number += 1;
        mix([self.number, 11, 13])
    }

    fn any(&mut self) -> usize {
        let count = u64::try_from(self.nodes.len()).unwrap();
        let chosen = usize::try_from(self.random() % count).unwrap();
        self.nodes[chosen]
    }

    /// The daemon is down for up to two seconds.
    fn restart(&mut self) -> usize {
        let (node, time) = (self.any(), self.random() % 2000);
        self.world.deaf.insert(node);
        self.world.run(Duration::from_millis(time));
        self.world.restart(node);
        self.world.deaf.remove(&node);
        node
    }

    /// Suspends a random node for up to 2.5 seconds, as a hypervisor may suspend a virtual machine.
    fn stall(&mut self) -> usize {
        let (node, time) = (self.any(), self.random() % 2500);
        self.world.stall(node, Duration::from_millis(time));
        node
    }

    /// Sets the clock forward or back by up to an hour.
    fn set_clock(&mut self) -> usize {
        let (node, by) = (self.any(), self.random() % 7_200_000);
        let by = i64::try_from(by).unwrap() - 3_600_000;
        self.world.clocks.insert(node, by);
        node
    }

    /// Sends a node 300 messages per second (probes and report requests) for five seconds, with a peer's forged address.
    fn flood(&mut self) -> usize {
        let (node, peer) = (self.any(), self.any());
        if node == peer {
            return node;
        }
        for step in 0..1500u64 {
            let number = self.random();
            let about = short(&subnet(self.nodes[usize::try_from(number % 3).unwrap()]));
            let (kind, token) = if step % 2 == 0 {
                (MessageKind::EchoQuestion, u32::try_from(step).ok())
            } else {
                (MessageKind::RowQuestion, Some(about))
            };
            let bytes = self.world.forge(kind, number, peer, node, token);
            self.world.inject(Path::Underlay, peer, node, &bytes);
            self.world.run(S / 300);
        }
        node
    }

    /// Causes a restart, a stall, a clock change or a flood every seven minutes, and asserts that no verdict is false.
    fn run(&mut self, seconds: u64) {
        let end = self.world.now.at + Duration::from_secs(seconds);
        while self.world.now.at < end {
            let begun = self.world.now.at;
            let (what, node) = match self.random() % 4 {
                0 => ("a restart of", self.restart()),
                1 => ("a stall of", self.stall()),
                2 => ("another clock of", self.set_clock()),
                _ => ("a flood of", self.flood()),
            };
            for _ in 0..42 {
                self.world.run(10 * S);
                let wrong = self.false_verdicts();
                let after = self.world.now.at - begun;
                assert!(wrong.is_empty(), "{after:?} after {what} {node}: {wrong:?}");
            }
            let faults: Vec<_> = self.nodes.iter().map(|node| self.world.faults(*node)).collect();
            assert!(faults.iter().all(Vec::is_empty), "{faults:?}");
        }
    }

    fn false_verdicts(&self) -> Vec<&(usize, Notice)> {
        let may_lose = self.world.lost >= 10;
        let is_false = |(_, notice): &&(usize, Notice)| match notice.is {
            State::Unknown | State::Well => false,
            State::LosesSome => !may_lose,
            _ => true,
        };
        self.world.notices.iter().filter(is_false).collect()
    }
}

fn day(count: usize, lost: u64, seconds: u64) {
    let mut day = Day::new(count, lost);
    day.run(seconds);
}

#[test]
fn hour_has_no_false_verdict() {
    for count in world::sizes(&[3, 48, 1000]) {
        day(count, 0, HOUR);
        day(count, 10, HOUR);
    }
}

#[test]
#[ignore = "minutes: a part of `make test-sim`"]
fn day_has_no_false_verdict() {
    for count in world::sizes(&[3, 48, 200]) {
        day(count, 0, 24 * HOUR);
        day(count, 10, 24 * HOUR);
    }
}

/// When a partition separates two halves of a cluster, each node reports the other half as `cut-off` and its own half as `well`.
#[test]
fn partition_is_known_and_forgotten_when_it_heals() {
    let mut world = World::new(48);
    world.run(60 * S);
    let far = |node: usize, of: usize| (node < 24) != (of < 24);
    let set = |world: &mut World, link: Link| {
        for (a, b) in (0..24).flat_map(|a| (24..48).map(move |b| (a, b))) {
            world.set(a, b, link);
        }
    };
    let is_known = |world: &World, beyond: State| {
        (0..48).all(|node| {
            world.faults(node).is_empty()
                && (0..48).filter(|of| node != *of).all(|of| {
                    world.state(node, of) == if far(node, of) { beyond } else { State::Well }
                })
        })
    };
    set(&mut world, Link::dead());
    world.until(300 * S, |world| is_known(world, State::CutOff));
    set(&mut world, Link::default());
    world.until(300 * S, |world| is_known(world, State::Well));
    let before = world.notices.len();
    world.run(600 * S);
    assert_eq!(world.notices.len(), before, "it stays well");
}
