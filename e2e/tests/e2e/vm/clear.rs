//! A cluster that changes to the kernel's wireguard.

use anyhow::Result;

use crate::in_the_clear::change;

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn change_from_direct_routing_sends_nothing_in_the_clear() -> Result<()> {
    change(r#"{"Type":"vxlan","DirectRouting":true}"#, "kernel")
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn change_from_host_gw_sends_nothing_in_the_clear() -> Result<()> {
    change(r#"{"Type":"host-gw"}"#, "kernel")
}
