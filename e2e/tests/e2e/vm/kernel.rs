//! The kernel features that the tests in the virtual machine need.

use anyhow::{Result, ensure};
use lab::Lab;

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn kernel_supports_all_tunnels_and_netem() -> Result<()> {
    Lab::run("vm: kernel", |lab| {
        let lan = lab.create_switch("lan")?;
        let host = lab.create_hosts(&lan, 1)?.remove(0);
        let netns = host.netns();
        netns.sh("ip link add wg9 type wireguard; ip link add i9 type ipip local 192.168.56.101; ip link add d9 type dummy")?;
        netns.sh("ip link add flannel.9 type vxlan id 9 dev enp0s8 dstport 8472; tc qdisc add dev enp0s8 root netem delay 1ms loss 10%")?;
        let kinds = netns.sh("ip -d link")?;
        for kind in ["wireguard", "ipip", "dummy", "vxlan"] {
            ensure!(kinds.contains(&format!("    {kind} ")), "no {kind} in {kinds}");
        }
        Ok(())
    })
}
