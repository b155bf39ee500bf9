//! Backends of the userspace datapath, each with its configuration, device, port and overhead.

pub(crate) struct Engine {
    /// Part of the names of its scenes.
    pub(crate) name: &'static str,
    /// Members of `Backend` in the network configuration.
    backend: &'static str,
    /// Of IPv4 and of IPv6; the same one if it carries both families.
    pub(crate) devices: [&'static str; 2],
    /// Of the tunnels, by family.
    pub(crate) ports: [u16; 2],
    /// The underlay's MTU minus a pod's longest packet, in bytes, by family.
    pub(crate) overheads: [u32; 2],
}

impl Engine {
    /// An IPv4 network.
    pub(crate) fn v4_net_conf(&self) -> String {
        let backend = self.backend;
        format!(r#"{{"Network":"10.5.0.0/16","Backend":{{{backend}}}}}"#)
    }

    /// A network with both address families.
    pub(crate) fn dual_stack_net_conf(&self) -> String {
        self.dual_stack_net_conf_with("")
    }

    /// A network with both address families; `more` are further members of `Backend`.
    pub(crate) fn dual_stack_net_conf_with(&self, more: &str) -> String {
        let backend = self.backend;
        format!(
            r#"{{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","Backend":{{{backend}{more}}}}}"#
        )
    }
}

pub(crate) const UDP: Engine = Engine {
    name: "udp",
    backend: r#""Type":"udp""#,
    devices: ["flannel0"; 2],
    ports: [8285; 2],
    overheads: [28; 2],
};

pub(crate) const VXLAN: Engine = Engine {
    name: "vxlan",
    backend: r#""Type":"vxlan","Mode":"userspace""#,
    devices: ["flannel.1", "flannel-v6.1"],
    ports: [8472; 2],
    overheads: [50, 70],
};

/// Userspace WireGuard with one device for each address family. The overhead is 40 bytes of IPv6, 8 of UDP and 32 of WireGuard, as for kernel WireGuard.
pub(crate) const WIREGUARD: Engine = Engine {
    name: "wireguard",
    backend: r#""Type":"wireguard","Implementation":"userspace""#,
    devices: ["flannel-wg", "flannel-wg-v6"],
    ports: [51820, 51821],
    overheads: [80; 2],
};

/// Userspace WireGuard with one device, which has sockets of both address families.
pub(crate) const WIREGUARD_AUTO: Engine = Engine {
    name: "wireguard auto",
    backend: r#""Type":"wireguard","Implementation":"userspace","Mode":"auto""#,
    devices: ["flannel-wg"; 2],
    ports: [51820; 2],
    ..WIREGUARD
};

/// Userspace WireGuard with one device, which has IPv6 sockets.
pub(crate) const WIREGUARD_IPV6: Engine = Engine {
    name: "wireguard ipv6",
    backend: r#""Type":"wireguard","Implementation":"userspace","Mode":"ipv6""#,
    ..WIREGUARD_AUTO
};
