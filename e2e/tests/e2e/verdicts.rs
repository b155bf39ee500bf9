//! The doctor is right: healthy hosts are quiet, however odd; a fault is told by its cause, on the node that has it and on the others; the commands
//! of the first finding mend it.

mod bench;
mod fault;
mod odd;
mod rows;

use anyhow::Result;

use fault::{Fault, walk};

/// So many labs walk at once.
const LABS: usize = 4;

/// The rows of a table, in labs side by side.
fn side_by_side(title: &str, network: &str, faults: &[&'static Fault]) -> Result<()> {
    let labs = faults.len().div_ceil(4).clamp(1, LABS);
    // The next row goes to the lab that is free.
    let next = std::sync::Mutex::new(faults.iter());
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
    fault::report(&outcomes, faults.len())
}

/// Those of `make test`.
#[test]
fn fault_is_told_by_its_cause_and_mended_by_its_commands() -> Result<()> {
    let chosen: Vec<&'static Fault> = rows::FAULTS.iter().filter(|fault| fault.quick).collect();
    side_by_side("verdicts", rows::NETWORK, &chosen)
}

/// All of them.
#[test]
#[ignore = "minutes: a part of `make soak`"]
fn every_fault_is_told_by_its_cause_and_mended_by_its_commands() -> Result<()> {
    let wanted = std::env::var("FLANNEL_TEST_FAULT").unwrap_or_default();
    let chosen: Vec<&'static Fault> = rows::FAULTS
        .iter()
        .filter(|fault| fault.name.contains(&wanted))
        .collect();
    side_by_side("all verdicts", rows::NETWORK, &chosen)
}
