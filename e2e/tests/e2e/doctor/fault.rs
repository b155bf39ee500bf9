//! A fault of a host. The doctor reports only the cause of the fault. The doctor's commands fix the fault, and the doctor then reports no finding.

use anyhow::{Context, Result, bail, ensure};
use lab::until_ok;

use super::node::Node;

/// A fault of a node, with the scripts that cause and remove the fault.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    /// Name of the check that finds the fault.
    pub check: &'static str,
    /// Script that causes the fault.
    make: &'static str,
    /// Script that removes the objects that remain after the doctor's commands.
    clear: &'static str,
    /// If true, the doctor has no command for the fault, and the script `clear` fixes the fault.
    by_hand: bool,
    /// Effect of the fault on the daemon's readiness.
    readiness: Readiness,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Readiness {
    /// The daemon stays ready despite the fault.
    Kept,
    /// The daemon is not ready until the end of the fault.
    Withdrawn,
    /// No daemon responds.
    Silent,
}

/// Returns a fault that the doctor's commands fix.
pub(super) const fn fault(check: &'static str, make: &'static str, clear: &'static str) -> Fault {
    Fault {
        check,
        make,
        clear,
        by_hand: false,
        readiness: Readiness::Kept,
    }
}

/// Selects the faults that the doctor's commands fix, and returns their checks.
pub(super) fn mended(faults: &'static [Fault]) -> impl Iterator<Item = &'static str> {
    let by_commands = faults.iter().filter(|fault| !fault.by_hand);
    by_commands.map(|fault| fault.check)
}

impl Fault {
    /// Marks a fault that no command can fix.
    pub(super) const fn by_hand(self) -> Fault {
        Fault {
            by_hand: true,
            ..self
        }
    }

    /// Marks a fault that makes the node unready.
    pub(super) const fn unready(self) -> Fault {
        Fault {
            readiness: Readiness::Withdrawn,
            ..self
        }
    }

    /// Marks a fault that ends or suspends the daemon.
    pub(super) const fn silent(self) -> Fault {
        Fault {
            readiness: Readiness::Silent,
            ..self
        }
    }
}

/// Causes, detects and fixes faults on a healthy node, one at a time.
pub(super) fn walk(node: &mut Node, faults: &[Fault]) -> Result<()> {
    faults
        .iter()
        .try_for_each(|fault| one(node, fault).with_context(|| fault.check))
}

fn one(node: &mut Node, fault: &Fault) -> Result<()> {
    let before = node.readyz()?;
    ensure!(before.0 == 200, "{before:?}");
    node.run(fault.make).context("making it")?;
    node.expect(&[fault.check])?;
    match fault.readiness {
        Readiness::Kept => {
            let now = node.readyz()?;
            ensure!(now.0 == 200, "findings do not change readiness: {now:?}");
        }
        Readiness::Withdrawn => until_ok("the daemon is not ready", || match node.readyz()? {
            (503, _) => Ok(()),
            other => bail!("{other:?}"),
        })?,
        Readiness::Silent => {}
    }
    if !fault.by_hand {
        node.mend_finding(fault.check).context("mending it")?;
        node.expect(&[]).context("after its commands")?;
    }
    node.run(fault.clear).context("clearing it")?;
    node.expect(&[]).context("afterwards")?;
    until_ok("it is ready again", || {
        let after = node.readyz()?;
        ensure!(after.0 == 200, "{after:?}");
        Ok(())
    })
}

/// Runs tests in parallel, because each test spends most of its time waiting.
pub(super) fn in_parallel(labs: &[fn() -> Result<()>]) -> Result<()> {
    let done: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = labs.iter().map(|lab| scope.spawn(lab)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a lab panicked")))
            .collect()
    });
    // Collects all failures, so that none hides another.
    let failed: Vec<String> = done
        .into_iter()
        .filter_map(|done| done.err().map(|error| format!("{error:#}")))
        .collect();
    ensure!(
        failed.is_empty(),
        "{} of {} lab(s) failed:\n{}",
        failed.len(),
        labs.len(),
        failed.join("\n\n")
    );
    Ok(())
}
