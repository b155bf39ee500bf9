//! The doctor is right: healthy hosts are quiet, however odd; a fault is told by its cause, on the node that has it and on the others; the commands
//! of the first finding mend it.

mod bench;
mod cluster;
mod fault;
pub(crate) mod odd;
mod rows;

use std::collections::BTreeSet;

use anyhow::Result;

use fault::{Fault, Row, walk};

/// So many labs walk at once.
const LABS: usize = 4;
/// So many of the rows with two faults are among those of `make test`.
const QUICK_PAIRS: usize = 5;

/// The rows of a table, in labs side by side.
fn side_by_side(title: &str, network: &str, rows: &[Row]) -> Result<()> {
    let labs = rows.len().div_ceil(4).clamp(1, LABS);
    // The next row goes to the lab that is free.
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

/// The checks whose commands mend a fault of the table.
pub(crate) fn mended() -> BTreeSet<&'static str> {
    let mended = rows::FAULTS.iter().filter_map(Fault::mended_by);
    mended.flat_map(|checks| checks.split(' ')).collect()
}

/// Those of `make test`.
#[test]
fn fault_is_told_by_its_cause_and_mended_by_its_commands() -> Result<()> {
    let single = rows::FAULTS
        .iter()
        .filter(|fault| fault.quick)
        .map(Row::One);
    let chosen: Vec<Row> = single
        .chain(rows::pairs()?.into_iter().take(QUICK_PAIRS))
        .collect();
    side_by_side("verdicts", rows::NETWORK, &chosen)
}

/// A fault of one family is told as such, and the other one is left alone.
#[test]
fn faults_of_ipv6_are_told_by_their_cause() -> Result<()> {
    let rows: Vec<Row> = rows::OF_IPV6.iter().map(Row::One).collect();
    side_by_side("verdicts of IPv6", rows::BOTH, &rows)
}

/// All of them.
#[test]
#[ignore = "minutes: a part of `make soak`"]
fn every_fault_is_told_by_its_cause_and_mended_by_its_commands() -> Result<()> {
    let wanted = std::env::var("FLANNEL_TEST_FAULT").unwrap_or_default();
    let chosen: Vec<Row> = rows::FAULTS
        .iter()
        .map(Row::One)
        .chain(rows::pairs()?)
        .filter(|row| row.name().contains(&wanted))
        .collect();
    side_by_side("all verdicts", rows::NETWORK, &chosen)
}
