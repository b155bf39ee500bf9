//! Network configurations, devices, and damages that `ip` and `bridge` can cause to the devices.

use Foreign::{GoesWithDevice, Stays};

/// In a network with one or both address families.
pub(crate) struct Backend {
    /// Part of the names of its test environments.
    pub(crate) name: &'static str,
    /// The value of `Backend` in the network configuration.
    pub(crate) conf: &'static str,
    pub(crate) dual_stack: bool,
    pub(crate) devices: &'static [&'static str],
    /// Other programs can add neighbours to devices with MACs.
    pub(crate) has_macs: bool,
    /// The underlay's MTU minus the longest overlay packet, in bytes.
    pub(crate) overhead: u32,
    /// Damages to the backend's devices that only a write to the kernel repairs.
    pub(crate) damages: &'static [Damage],
}

/// To the first host, with its effect on the objects of other programs.
pub(crate) struct Damage {
    pub(crate) what: &'static str,
    /// A shell command. With `DEV` in it, it runs once for each device.
    pub(crate) command: &'static str,
    pub(crate) foreign: Foreign,
}

/// What a damage does to other programs' objects. flanneld cannot prevent it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Foreign {
    Stays,
    /// The kernel removes all objects on the device.
    GoesWithDevice,
}

const fn damage(what: &'static str, command: &'static str, foreign: Foreign) -> Damage {
    Damage { what, command, foreign }
}

impl Backend {
    pub(super) fn net_conf(&self) -> String {
        let v6 = if self.dual_stack {
            r#""EnableIPv6":true,"IPv6Network":"fd00:5::/48","IPv6SubnetLen":64,"#
        } else {
            ""
        };
        format!(
            r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0",{v6}"Backend":{}}}"#,
            self.conf
        )
    }
}

impl Damage {
    pub(super) fn command_for(&self, devices: &[&str]) -> String {
        if !self.command.contains("DEV") {
            return self.command.to_owned();
        }
        devices.iter().map(|device| format!("{}\n", self.command.replace("DEV", device))).collect()
    }
}

pub(crate) static VXLAN_DUAL: Backend = Backend {
    name: "dual",
    conf: r#"{"Type":"vxlan"}"#,
    dual_stack: true,
    devices: &["flannel.1", "flannel-v6.1"],
    has_macs: true,
    overhead: 50,
    damages: &OF_VXLAN,
};

pub(crate) static HOST_GW: Backend = Backend {
    name: "host-gw",
    conf: r#"{"Type":"host-gw"}"#,
    dual_stack: false,
    devices: &[],
    has_macs: false,
    overhead: 0,
    damages: &[],
};

/// Needs a kernel with IPIP.
pub(crate) static IPIP: Backend = Backend {
    name: "ipip",
    conf: r#"{"Type":"ipip"}"#,
    dual_stack: false,
    devices: &["flannel.ipip"],
    has_macs: false,
    overhead: 20,
    damages: &OF_IPIP,
};

/// In userspace: no other program can change its peers and keys.
pub(crate) static WIREGUARD: Backend = Backend {
    name: "wireguard",
    conf: r#"{"Type":"wireguard","Implementation":"userspace"}"#,
    dual_stack: true,
    devices: &["flannel-wg", "flannel-wg-v6"],
    has_macs: false,
    overhead: 80,
    damages: &OF_USERSPACE_WIREGUARD,
};

const DELETED: Damage = damage("the device is deleted", "ip link del DEV", GoesWithDevice);
const DOWN: Damage = damage("the device is set down", "ip link set DEV down", GoesWithDevice);
const DOWN_AND_UP: Damage = damage(
    "the device is set down and up",
    "ip link set DEV down; ip link set DEV up",
    GoesWithDevice,
);
/// To 1300 bytes, because the kernel removes IPv6 from a device whose MTU is below 1280.
const MTU: Damage = damage("the MTU changes", "ip link set DEV mtu 1300", Stays);
const ADDRESS_REMOVED: Damage = damage(
    "the address is removed",
    "for net in $(ip -o address show dev DEV scope global | grep -o '\\(10.5\\|fd00:5:\\)[^ ]*'); do ip address del $net dev DEV; done",
    Stays,
);

/// `backends/tests/kernel/repair.rs` has all damages.
static OF_VXLAN: [Damage; 4] = [
    DELETED,
    DOWN_AND_UP,
    damage(
        "the neighbours are deleted",
        "for ip in $(ip neigh show dev DEV nud permanent | grep -v 10.98 | cut -d' ' -f1); do ip neigh del $ip dev DEV; done",
        Stays,
    ),
    // With a new MAC, the kernel drops all neighbours of the device, including foreign ones.
    damage("the MAC changes", "ip link set DEV address 02:00:00:00:00:99", GoesWithDevice),
];

/// The device and the parameters of its kind. Other devices are repaired by the same code when they are down, renamed, or lose their address or MTU.
static OF_IPIP: [Damage; 4] = [
    DELETED,
    damage(
        "the local address changes",
        "ip link change DEV type ipip local 10.98.0.1 remote any",
        Stays,
    ),
    damage(
        "the TTL changes",
        "ip link change DEV type ipip local 192.168.56.101 remote any ttl 9 pmtudisc",
        Stays,
    ),
    // Loops because the daemon may restore the device between the two commands.
    damage(
        "the device leads to one peer",
        "until ip link add DEV type ipip local 192.168.56.101 remote 192.168.56.102 2>/dev/null; do ip link del DEV || true; done",
        GoesWithDevice,
    ),
];

static OF_USERSPACE_WIREGUARD: [Damage; 9] = [
    DELETED,
    DOWN,
    DOWN_AND_UP,
    ADDRESS_REMOVED,
    MTU,
    // The daemon may be faster than any of these commands, so they loop and may fail.
    damage(
        "the device is renamed and deleted",
        "until ip link set DEV name other9 2>/dev/null; do ip link set DEV down || true; done; ip link set other9 up && ip link del other9 || true",
        GoesWithDevice,
    ),
    damage(
        "another program's device takes the name",
        "ip link del DEV; ip tuntap add dev DEV mode tun || true",
        GoesWithDevice,
    ),
    damage(
        "the blackholes are deleted",
        "ip route del blackhole 10.5.0.0/16; ip -6 route del blackhole fd00:5::/48",
        Stays,
    ),
    damage(
        "the network's routes are deleted",
        "ip route del 10.5.0.0/16 dev flannel-wg; ip -6 route del fd00:5::/48 dev flannel-wg-v6",
        Stays,
    ),
];
