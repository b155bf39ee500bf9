//! A cluster changes to kernel WireGuard, node by node.

use std::time::Duration;

use anyhow::Result;

use crate::wireguard::cleartext::require_encrypted_change_to_wireguard;

/// Between two packets of a flow. At this rate, an emulated machine can carry the forty flows.
const SELDOM: Duration = Duration::from_secs(1);

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn change_from_direct_routing_sends_nothing_in_the_clear() -> Result<()> {
    let from = r#"{"Type":"vxlan","DirectRouting":true}"#;
    require_encrypted_change_to_wireguard((from, "kernel", SELDOM))
}
