//! Tests the lease protocol under faults: many nodes use one model store in simulated time, and a random seed determines the faults.
//!
//! `SIMULATION_SEED=n` replays the run of one seed and prints its history. `SIMULATION_SEEDS=n` sets the number of seeds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

#[path = "simulation/hold.rs"]
mod hold;
#[path = "simulation/node.rs"]
mod node;
#[path = "simulation/store.rs"]
mod store;
#[path = "simulation/world.rs"]
mod world;

use world::World;

fn run(seed: u64, talk: bool) -> Result<(), String> {
    let mut world = World::new(seed, talk);
    world.run().map_err(|why| {
        format!(
            "seed {seed} ({:?}): {why}; replay with SIMULATION_SEED={seed} cargo test -p subnet-lease --test simulation -- --nocapture",
            world.scenario
        )
    })
}

#[test]
fn leases_survive_faults() {
    if let Some(seed) = std::env::var("SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed, true).unwrap();
        return;
    }
    let seeds: u64 =
        std::env::var("SIMULATION_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(150);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let halves: Vec<_> = (0..2)
            .map(|half| {
                scope.spawn(move || {
                    (0..seeds)
                        .filter(|seed| seed % 2 == half)
                        .filter_map(|seed| run(seed, false).err())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    for failure in &failures {
        println!("{failure}");
    }
    assert!(
        failures.is_empty(),
        "{} of {seeds} seeds failed; the first: {}",
        failures.len(),
        failures[0]
    );
}

/// The simulation must detect faults: it must fail if the store ignores the conditions of a compare-and-swap.
#[test]
fn the_simulation_can_fail() {
    let is_noticed = (0..400).any(|seed| {
        let mut world = World::new(seed, false);
        world.store.ignores_compares = true;
        world.run().is_err()
    });
    assert!(is_noticed, "none of 400 broken runs was noticed");
}
