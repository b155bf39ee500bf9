//! Odd but healthy hosts with devices that few kernels support.

use anyhow::{Result, ensure};
use std::time::Duration;

use crate::verdicts::odd::{IN_THE_VIRTUAL_MACHINE, is_quiet};

/// As long as on other machines. This machine is slower, but the doctor's rounds are not.
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
