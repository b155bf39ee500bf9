//! The kernel passes and drops packets as `Walk` predicts. The test sends packets through random
//! rules of iptables (both variants) and nft, and compares the outcome of each packet with the
//! prediction.
//!
//! The environment variable `RULES_SEED` sets the first random seed, and `RULES_SETS` the number of
//! rule sets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows it in tests, but does not know their helpers"
)]

#[path = "kernel/bed.rs"]
mod bed;
#[path = "kernel/origins.rs"]
mod origins;
#[path = "kernel/sets.rs"]
mod sets;
#[path = "kernel/slots.rs"]
mod slots;

use bed::{Bed, PACKETS, Sent};
use rand::SeedableRng;
use rand::rngs::StdRng;
use sets::RuleSet;

use traffic_rules::reader::{Fate, Walk};

/// Rule sets in one run.
const SETS: u64 = 48;
/// Rule sets for which the test establishes all connections at once.
const BATCH: usize = 48;

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn kernel_drops_what_the_walk_predicts() {
    let (first, sets) = (variable("RULES_SEED", 1), variable("RULES_SETS", SETS));
    let bed = Bed::new();
    let (mut packets, mut perhaps, mut passed, mut wrong) = (0_u32, 0_u32, 0_u32, Vec::new());

    let all: Vec<(u64, RuleSet, Vec<Sent>)> = (first..first + sets)
        .map(|seed| {
            let mut random = StdRng::seed_from_u64(seed);
            let set = RuleSet::random(&mut random, seed);
            let sent = (0..PACKETS)
                .map(|number| Sent::random(&mut random, set.family, seed, number))
                .collect();
            (seed, set, sent)
        })
        .collect();
    for (place, (seed, set, sent)) in all.iter().enumerate() {
        if place % BATCH == 0 {
            let next = all[place..].iter().take(BATCH).flat_map(|(.., sent)| sent);
            bed.establish(&next.filter(|sent| sent.established).collect::<Vec<_>>());
        }

        let rules = bed.apply(set);
        let fates: Vec<Fate> = sent
            .iter()
            .map(|sent| Walk::through(&rules).fate(&sent.packet(set.bridge_calls_ip)))
            .collect();
        let arrived = bed.send(sent, &fates);
        for ((sent, fate), arrived) in sent.iter().zip(&fates).zip(arrived) {
            packets += 1;
            passed += u32::from(arrived);
            match (fate, arrived) {
                (Fate::Yes { .. }, false) | (Fate::No(_), true) => {
                    wrong.push(format!(
                        "seed {seed}: {sent:?} {}, and the walk says {fate:?}\n{set}",
                        if arrived { "arrived" } else { "is dropped" }
                    ));
                }
                (Fate::Perhaps { .. }, _) => perhaps += 1,
                _ => {}
            }
        }
    }
    println!(
        "{sets} sets from seed {first}: {packets} packets, {passed} passed, {perhaps} perhaps"
    );
    assert!(
        wrong.is_empty(),
        "{} of {packets} are wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(3)].join("\n")
    );
    assert!(perhaps * 20 <= packets, "{perhaps} of {packets} are perhaps");
    assert!(
        passed * 8 > packets && passed * 8 < packets * 7,
        "{passed} of {packets} passed: that shows little"
    );
}
