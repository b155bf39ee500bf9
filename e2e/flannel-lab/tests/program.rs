//! Tests `flannel-lab` as `flannelctl lab` runs the program. This test also makes `cargo test` build `flannel-lab`, which the end-to-end tests need.

#![allow(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

use std::process::Command;

#[test]
fn help_lists_the_backends() {
    let output = Command::new(env!("CARGO_BIN_EXE_flannel-lab")).arg("--help").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("--backend") && text.contains("vxlan-userspace"),
        "{text}"
    );
}
