//! Odd but healthy hosts with devices that few kernels support.

use anyhow::{Result, ensure};
use std::time::Duration;

use crate::verdicts::odd::{IN_THE_VIRTUAL_MACHINE, is_quiet};

/// The time in which no finding may appear, equal to the time on other machines. The virtual machine is
/// slower than other machines, but the interval of the doctor's rounds is the same.
const QUIET: Duration = Duration::from_secs(20);

#[test]
#[ignore = "needs a kernel with bonds, VLANs, dummies and netem: make test-vm"]
fn odd_but_healthy_machines_have_no_findings() -> Result<()> {
    let failed: Vec<String> = IN_THE_VIRTUAL_MACHINE
        .iter()
        .filter_map(|odd| is_quiet(odd, QUIET).err())
        .map(|error| format!("{error:#}"))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n\n"));
    Ok(())
}
