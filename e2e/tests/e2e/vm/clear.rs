//! A cluster that changes to the kernel's wireguard.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::in_the_clear::change;

/// An emulated machine carries one such cluster, and forty flows of a packet a second.
const SELDOM: Duration = Duration::from_secs(1);
static ALONE: Mutex<()> = Mutex::new(());

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn change_from_direct_routing_sends_nothing_in_the_clear() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    change(r#"{"Type":"vxlan","DirectRouting":true}"#, "kernel", SELDOM)
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn change_from_host_gw_sends_nothing_in_the_clear() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    change(r#"{"Type":"host-gw"}"#, "kernel", SELDOM)
}
