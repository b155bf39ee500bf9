//! A cluster with kernel WireGuard on one node and userspace WireGuard on the other.

use anyhow::Result;
use lab::Scene;

use super::wireguard::{net_conf, require_full_mtu_between_pods};

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn kernel_and_userspace_nodes_interoperate() -> Result<()> {
    Scene::with_title("vm: wireguard both").without_daemons().run(|s| {
        // Each daemon reads the configuration when it starts.
        for (number, (implementation, kind)) in [("kernel", "wireguard"), ("userspace", "tun")].into_iter().enumerate() {
            let backend = format!(r#","PSK":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","Implementation":"{implementation}""#);
            s.store.configure(&net_conf(&backend))?;
            s[number].start_daemon()?;
            s[number].wait_output_contains("ip -d link show flannel-wg", kind)?;
        }
        s.start_daemons_and_connected_pods()?;
        require_full_mtu_between_pods(s)?;
        s.require_no_errors()
    })
}
