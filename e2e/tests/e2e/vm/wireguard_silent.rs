//! Tests that the doctor reports a WireGuard peer that completes no handshake, with the likely cause, until the peer completes a handshake.

use std::time::Duration;

use crate::healing::scenarios;
use crate::wireguard_secrets::different_preshared_keys_are_reported;

/// Deadline of the report: ten times the usual 40 s, because the machine is emulated.
const REPORTED: Duration = Duration::from_secs(400);

scenarios! { different_preshared_keys_are_reported;
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    different_preshared_keys_are_reported_until_they_match => ("vm: wireguard silent", "kernel", REPORTED),
}
