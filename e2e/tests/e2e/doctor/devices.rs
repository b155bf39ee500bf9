//! Faults of devices: other programs' devices with flannel's names, leftover devices, and disabled IPv6 forwarding.

use anyhow::{Result, ensure};

use super::fault::{Fault, fault, walk};
use super::node::{all_well, well_nodes};

const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:5::/48","Backend":{"Type":"vxlan"}}"#;

const FAULTS: &[Fault] = &[
    fault("ipv6-forwarding", "sysctl -q -w net.ipv6.conf.all.forwarding=0", "true"),
    // These may belong to another network whose daemon is stopped. Only the operator can know this, and deletes them.
    fault("leftovers", "ip tuntap add flannel0 mode tun", "ip link delete flannel0").by_hand(),
    fault("leftovers", "ip link add flannel.7 type vxlan id 7 dstport 8472", "ip link delete flannel.7").by_hand(),
    fault("leftovers", "ip -6 link add flannel-v6.7 type vxlan id 7 dstport 8472 local fd00:56::101", "ip link delete flannel-v6.7").by_hand(),
    // The daemon restores its own device at once, so it is stopped while another device takes the name.
    fault(
        "foreign-device",
        "kill -STOP $(cat /run/flanneld.pid); ip link delete flannel.1; ip link add flannel.1 type bridge; kill -CONT $(cat /run/flanneld.pid)",
        "ip link delete was-flannel.1",
    )
    .unready(),
    fault(
        "foreign-device",
        "kill -STOP $(cat /run/flanneld.pid); ip link delete flannel.1; ip link add vx1 type vxlan id 1 dstport 8472 nolearning
        kill -CONT $(cat /run/flanneld.pid)",
        "ip link delete vx1",
    )
    .by_hand()
    .unready(),
];

/// Returns the names of the doctor's checks for device faults that the doctor's commands fix.
pub(super) fn mended() -> impl Iterator<Item = &'static str> {
    super::fault::mended(FAULTS)
}

#[test]
fn conflicting_devices_are_found_and_renamed() -> Result<()> {
    well_nodes(DUAL, "doctor: devices", 2, |_, _, nodes| {
        walk(&mut nodes[0], FAULTS)?;
        all_well(nodes)?;

        // A foreign device that is there when the daemon starts makes it exit.
        let node = &mut nodes[0];
        node.run(
            "kill -9 $(cat /run/flanneld.pid); ip link delete flannel.1; ip link delete was-flannel.1 || true; ip link add flannel.1 type bridge",
        )?;
        node.daemon()?.kill()?;
        node.start()?;
        node.expect(&["foreign-device"])?;
        ensure!(
            node.folded("not-running")?.as_deref() == Some("foreign-device"),
            "{:#}",
            node.doctor()?.1
        );
        node.mend()?;
        node.ready()?;
        all_well(nodes)
    })
}
