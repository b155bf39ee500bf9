//! Tests that the doctor has no finding on healthy hosts with unusual devices, which few kernels support.

use anyhow::{Result, ensure};
use std::time::Duration;

use crate::verdicts::odd::{IN_THE_VIRTUAL_MACHINE, is_quiet};

/// Duration for which the doctor must have no finding: two runs of the doctor's checks. The slow virtual machine does
/// not lengthen the interval between two runs of the doctor.
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
