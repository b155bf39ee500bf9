//! Checks that the doctor's findings are correct. Unusual but healthy hosts have no findings. The doctor names
//! the cause of a fault, on the faulty node and on the other nodes. The commands that the first finding suggests fix the fault.

mod bench;
mod cluster;
mod fault;
pub(crate) mod odd;
mod rows;

use std::collections::BTreeSet;

use anyhow::Result;

use fault::{Fault, Row, walk};

/// Maximum number of labs that run in parallel.
const LABS: usize = 4;
/// Number of cases with two simultaneous faults that `make test` runs.
const QUICK_PAIRS: usize = 5;

/// Runs the fault cases `rows` in several labs in parallel.
fn side_by_side(title: &str, network: &str, rows: &[Row]) -> Result<()> {
    let labs = rows.len().div_ceil(4).clamp(1, LABS);
    // The next free lab takes the next row.
    let next = std::sync::Mutex::new(rows.iter());
    let outcomes = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..labs)
            .map(|number| {
                let (next, outcomes) = (&next, &outcomes);
                scope.spawn(move || walk(&format!("{title} {number}"), network, next, outcomes))
            })
            .collect();
        for thread in started {
            thread
                .join()
                .unwrap_or_else(|_| anyhow::bail!("a lab panicked"))?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let outcomes = outcomes
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    fault::report(&outcomes, rows.len())
}

/// Returns the names of the doctor's checks for faults that the doctor's commands fix.
pub(crate) fn mended() -> BTreeSet<&'static str> {
    let mended = rows::FAULTS.iter().filter_map(Fault::mended_by);
    mended.flat_map(|checks| checks.split(' ')).collect()
}

/// Runs the fault cases that `make test` includes.
#[test]
fn fault_is_reported_by_its_cause_and_fixed_by_its_commands() -> Result<()> {
    let single = rows::FAULTS
        .iter()
        .filter(|fault| fault.quick)
        .map(Row::One);
    let chosen: Vec<Row> = single
        .chain(rows::pairs()?.into_iter().take(QUICK_PAIRS))
        .collect();
    side_by_side("verdicts", rows::NETWORK, &chosen)
}

/// In a dual-stack network, the doctor reports an IPv6 fault by its cause, and reports no IPv4 fault.
#[test]
fn ipv6_faults_are_reported_by_their_cause() -> Result<()> {
    let rows: Vec<Row> = rows::OF_IPV6.iter().map(Row::One).collect();
    side_by_side("verdicts of IPv6", rows::BOTH, &rows)
}

/// Runs all rows.
#[test]
#[ignore = "minutes: a part of `make soak`"]
fn every_fault_is_reported_by_its_cause_and_fixed_by_its_commands() -> Result<()> {
    let wanted = std::env::var("FLANNEL_TEST_FAULT").unwrap_or_default();
    let chosen: Vec<Row> = rows::FAULTS
        .iter()
        .map(Row::One)
        .chain(rows::pairs()?)
        .filter(|row| row.name().contains(&wanted))
        .collect();
    side_by_side("all verdicts", rows::NETWORK, &chosen)
}
