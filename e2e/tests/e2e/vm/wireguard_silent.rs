//! The doctor reports a WireGuard peer and the likely cause while it completes no handshake.

use crate::healing::scenarios;
use crate::wireguard::secrets::different_preshared_keys_are_reported;

scenarios! { different_preshared_keys_are_reported;
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    different_preshared_keys_are_reported_until_they_match => ("vm: wireguard silent", "kernel"),
}
