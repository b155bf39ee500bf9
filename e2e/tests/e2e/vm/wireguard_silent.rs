//! A WireGuard peer that completes no handshake is reported, with its likely cause, until it does.

use std::time::Duration;

use crate::healing::scenarios;
use crate::wireguard_secrets::different_preshared_keys_are_reported;

/// Ten times the 40 s within which it is reported, because the machine is emulated.
const REPORTED: Duration = Duration::from_secs(400);

scenarios! { different_preshared_keys_are_reported;
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    different_preshared_keys_are_reported_until_they_match => ("vm: wireguard silent", "kernel", REPORTED),
}
