//! The doctor has no finding on healthy hosts with unusual devices, which few kernels support.

use anyhow::Result;

use crate::doctor::verdicts::odd::{IN_THE_VIRTUAL_MACHINE, unusual_host_raises_no_finding};

#[test]
#[ignore = "needs a kernel with bonds, VLANs, dummies and netem: make test-vm"]
fn odd_but_healthy_machines_have_no_findings() -> Result<()> {
    IN_THE_VIRTUAL_MACHINE.iter().copied().try_for_each(unusual_host_raises_no_finding)
}
