//! Tests that the doctor reports a WireGuard peer and the likely cause while the peer completes no handshake.

use std::time::Duration;

use crate::healing::scenarios;
use crate::wireguard_secrets::different_preshared_keys_are_reported;

/// Deadline by which the doctor must report the peer: ten times the usual 40 s, because the machine is emulated.
const REPORTED: Duration = Duration::from_secs(400);

scenarios! { different_preshared_keys_are_reported;
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    different_preshared_keys_are_reported_until_they_match => ("vm: wireguard silent", "kernel", REPORTED),
}
