//! Backends of the userspace datapath, each with its configuration, device, port and overhead.

use serde_json::{Value, json};

/// A backend of the userspace datapath.
pub(crate) struct Engine {
    /// Name of the backend, which is part of the names of its test environments.
    pub(crate) name: &'static str,
    /// Value of `Backend` in the network configuration.
    conf: &'static str,
    /// Device for both families, or the IPv4 device if each family has its own device.
    pub(crate) device: &'static str,
    /// Device of IPv6.
    pub(crate) v6_device: &'static str,
    /// UDP port of the tunnel, or of the IPv4 tunnel if each family has its own tunnel.
    pub(crate) port: u16,
    /// UDP port of the IPv6 tunnel.
    pub(crate) v6_port: u16,
    /// Difference in bytes between the underlay's MTU and a pod's longest packet, for IPv4 and for IPv6.
    pub(crate) overheads: (u32, u32),
}

impl Engine {
    /// Returns the configuration of an IPv4 network.
    pub(crate) fn v4(&self) -> String {
        json!({ "Network": "10.5.0.0/16", "Backend": self.backend() }).to_string()
    }

    /// Returns the configuration of a network with both address families.
    pub(crate) fn dual(&self) -> String {
        json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": self.backend() }).to_string()
    }

    fn backend(&self) -> Value {
        serde_json::from_str(self.conf).unwrap()
    }

    pub(crate) fn is_wireguard(&self) -> bool {
        self.device == "flannel-wg"
    }

    pub(crate) fn device_of(&self, ipv6: bool) -> &'static str {
        if ipv6 { self.v6_device } else { self.device }
    }
}

pub(crate) static UDP: Engine = Engine {
    name: "udp",
    conf: r#"{"Type":"udp"}"#,
    device: "flannel0",
    v6_device: "flannel0",
    port: 8285,
    v6_port: 8285,
    overheads: (28, 28),
};

pub(crate) static VXLAN: Engine = Engine {
    name: "vxlan",
    conf: r#"{"Type":"vxlan","Mode":"userspace"}"#,
    device: "flannel.1",
    v6_device: "flannel-v6.1",
    port: 8472,
    v6_port: 8472,
    overheads: (50, 70),
};

/// Userspace WireGuard with one device for each address family. The overhead is 40 bytes of IPv6, 8 of UDP and 32 of WireGuard, as for kernel WireGuard.
pub(crate) static WIREGUARD: Engine = Engine {
    name: "wireguard",
    conf: r#"{"Type":"wireguard","Implementation":"userspace"}"#,
    device: "flannel-wg",
    v6_device: "flannel-wg-v6",
    port: 51820,
    v6_port: 51821,
    overheads: (80, 80),
};

/// Userspace WireGuard with one device, which has sockets of both address families.
pub(crate) static WIREGUARD_AUTO: Engine = Engine {
    name: "wireguard auto",
    conf: r#"{"Type":"wireguard","Implementation":"userspace","Mode":"auto"}"#,
    device: "flannel-wg",
    v6_device: "flannel-wg",
    port: 51820,
    v6_port: 51820,
    overheads: (80, 80),
};

/// Userspace WireGuard with one device, which has IPv6 sockets.
pub(crate) static WIREGUARD_IPV6: Engine = Engine {
    name: "wireguard ipv6",
    conf: r#"{"Type":"wireguard","Implementation":"userspace","Mode":"ipv6"}"#,
    device: "flannel-wg",
    v6_device: "flannel-wg",
    port: 51820,
    v6_port: 51820,
    overheads: (80, 80),
};
