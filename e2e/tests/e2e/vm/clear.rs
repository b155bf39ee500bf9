//! Tests the change of a cluster to kernel WireGuard, node by node.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::healing::scenarios;
use crate::in_the_clear::change;

/// Interval between two packets of a flow. At this rate, an emulated machine can carry only one cluster with forty flows.
const SELDOM: Duration = Duration::from_secs(1);
static ALONE: Mutex<()> = Mutex::new(());

scenarios! { change_in_turn;
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    change_from_direct_routing_sends_nothing_in_the_clear => r#"{"Type":"vxlan","DirectRouting":true}"#,
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    change_from_host_gw_sends_nothing_in_the_clear => r#"{"Type":"host-gw"}"#,
}

fn change_in_turn(from: &str) -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    change((from, "kernel", SELDOM))
}
