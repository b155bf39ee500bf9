//! WireGuard in user space: what `ip` can break of it. Its peers and keys no other program reaches.

use anyhow::Result;
use lab::Lab;

use super::Foreign::{GoesWithDevice, Stays};
use super::{Cluster, underlay_and_routes};

const CONF: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48",
    "IPv6SubnetLen":64,"Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;

fn devices(cluster: &Cluster) -> Result<()> {
    let repairs =
        |what, damage: &str, foreign| cluster.repairs(what, &cluster.each_device(damage), foreign);
    repairs("the device is deleted", "ip link del DEV", GoesWithDevice)?;
    repairs(
        "the device is set down",
        "ip link set DEV down",
        GoesWithDevice,
    )?;
    repairs(
        "the device is set down and up",
        "ip link set DEV down; ip link set DEV up",
        GoesWithDevice,
    )?;
    let remove = "for net in $(ip -o address show dev DEV scope global | grep -o '\\(10.5\\|fd00:5:\\)[^ ]*'); do ip address del $net dev DEV; done";
    repairs("the address is removed", remove, Stays)?;
    // Below 1280 bytes the kernel would take IPv6 from the device.
    repairs("the MTU changes", "ip link set DEV mtu 1300", Stays)?;
    // The daemon may be faster than any of these commands.
    let rename = "until ip link set DEV name other9 2>/dev/null; do ip link set DEV down || true; done; ip link set other9 up && ip link del other9 || true";
    repairs("the device is renamed and deleted", rename, GoesWithDevice)?;
    repairs(
        "another program's device takes the name",
        "ip link del DEV; ip tuntap add dev DEV mode tun || true",
        GoesWithDevice,
    )?;
    cluster.repairs(
        "the blackholes are deleted",
        "ip route del blackhole 10.5.0.0/16; ip -6 route del blackhole fd00:5::/48",
        Stays,
    )?;
    cluster.repairs(
        "the network's routes are deleted",
        "ip route del 10.5.0.0/16 dev flannel-wg; ip -6 route del fd00:5::/48 dev flannel-wg-v6",
        Stays,
    )
}

#[test]
fn userspace_wireguard_heals() -> Result<()> {
    Lab::run("heal-wireguard", |lab| {
        let cluster = Cluster::start(lab, CONF)?;
        devices(&cluster)?;
        cluster.finish()
    })
}

#[test]
fn userspace_wireguard_follows_its_underlay() -> Result<()> {
    Lab::run("heal-wireguard-underlay", |lab| {
        let cluster = Cluster::start(lab, CONF)?;
        underlay_and_routes(&cluster, 80)?;
        cluster.finish()
    })
}
