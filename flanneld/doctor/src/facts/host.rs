//! The host: its interfaces, routes, sysctls, firewalls and ports.

use crate::fact::Fact;
use crate::firewalls::Firewalls;
use ipnet::IpNet;
use std::net::IpAddr;
use types::problem::PortPurpose;

/// The host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its interfaces, by index.
    pub interfaces: Fact<Vec<Interface>>,
    /// The routes of the main table.
    pub routes: Fact<Vec<Route>>,
    /// Where packets to some addresses leave: those of the store, the peers and the API server.
    pub ways: Fact<Vec<Way>>,
    /// The sysctls.
    pub sysctls: Fact<Sysctls>,
    /// The firewalls.
    pub firewalls: Fact<Firewalls>,
    /// Ports that are taken.
    pub ports: Fact<Vec<Port>>,
    /// The name servers of /etc/resolv.conf.
    pub name_servers: Fact<Vec<IpAddr>>,
    /// The table of connections; absent where the kernel tracks none.
    pub conntrack: Fact<Fill>,
    /// The tables of neighbours.
    pub neighbours: Fact<Neighbours>,
    /// Kernel modules that cannot be loaded though they are needed.
    pub modules: Fact<Vec<Module>>,
    /// Checksum errors.
    pub checksums: Fact<Checksums>,
    /// What other networks left or run here.
    pub foreign: Fact<Vec<Foreign>>,
    /// How many daemons of flannel serve networks in this network namespace.
    pub daemons: Fact<usize>,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its kind, as in `ip -d link`: `bridge`, `vxlan`, `veth`; empty for hardware.
    pub kind: String,
    /// Whether it is up.
    pub up: bool,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Its MTU.
    pub mtu: u32,
    /// Its hardware address in text.
    pub mac: String,
    /// The index of the bridge that it belongs to.
    pub master: Option<u32>,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// VNI and UDP port of a vxlan device.
    pub vxlan: Option<(u32, u16)>,
}

impl Interface {
    /// Whether it has an address.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|net| net.addr() == ip)
    }

    /// Its first address of a family that other machines can use.
    pub fn address(&self, ipv6: bool) -> Option<IpNet> {
        let usable = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
        };
        self.addresses.iter().find(|net| net.addr().is_ipv6() == ipv6 && usable(net.addr())).copied()
    }

    /// Whether it may join this host to others: not pods', not a tunnel's, not a container engine's.
    pub fn joins_hosts(&self) -> bool {
        const OTHERS: [&str; 11] = ["flannel", "cni", "docker", "br-", "virbr", "cali", "cilium", "lxc", "kube-", "weave", "podman"];
        let virtual_kind = matches!(self.kind.as_str(), "veth" | "vxlan" | "tun" | "dummy" | "ipip" | "wireguard" | "nodelocaldns");
        // A veth may be the uplink of a host that is a container itself.
        let kind = !virtual_kind || self.kind == "veth" && self.master.is_none();
        self.up && !self.loopback && kind && !OTHERS.iter().any(|prefix| self.name.starts_with(prefix))
    }
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its destination.
    pub to: IpNet,
    /// Its gateway.
    pub via: Option<IpAddr>,
    /// The index of its interface.
    pub index: Option<u32>,
    /// Its protocol, as in `ip route`: 2 kernel, 3 boot, 4 static, 16 dhcp, 241 flanneld's.
    pub protocol: u8,
    /// Its metric.
    pub metric: u32,
}

/// Where packets to an address leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The address.
    pub to: IpAddr,
    /// Whose it is: `the store`, `node-2`.
    pub whose: String,
    /// What it is.
    pub kind: WayKind,
    /// The interface and the source address, or why there is no route.
    pub by: Result<(u32, Option<IpAddr>), String>,
}

/// Whose address a way leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayKind {
    /// The store's.
    Store,
    /// The API server's.
    ApiServer,
    /// A peer's, as its lease publishes it.
    Peer,
    /// A peer's, as its Node names it.
    Node,
}

/// The sysctls that pods' packets depend on. `None`: there is no such file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// The underlay's name.
    pub underlay: String,
    /// net.ipv4.ip_forward
    pub ip_forward: Option<i64>,
    /// net.ipv6.conf.all.forwarding
    pub v6_forwarding: Option<i64>,
    /// Devices that would lose what routers announce as soon as this node forwards IPv6, sorted: their accept_ra is 1.
    pub announced: Vec<String>,
    /// Whether br_netfilter is loaded.
    pub br_netfilter: bool,
    /// Why it could not be loaded.
    pub module: Option<String>,
    /// net.bridge.bridge-nf-call-iptables
    pub call_iptables: Option<i64>,
    /// net.bridge.bridge-nf-call-ip6tables
    pub call_ip6tables: Option<i64>,
    /// Tunnel devices on which rp_filter is strict.
    pub strict_tunnels: Vec<String>,
    /// Addresses of peers that this node reaches through another interface while rp_filter is strict on the underlay.
    pub astray: Vec<IpAddr>,
}

/// flanneld's routing protocol, as in `ip route`.
pub const FLANNELD: u8 = 241;

/// A port that is taken, or that was wanted and is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// Whether it is UDP.
    pub udp: bool,
    /// What flannel wants it for.
    pub purpose: PortPurpose,
    /// Who has it, as far as it can be told.
    pub owner: Option<String>,
}

impl Port {
    /// What flannel wants it for, for people.
    pub fn wanted_for(&self) -> &'static str {
        match self.purpose {
            PortPurpose::Health => "health endpoints",
            PortPurpose::Api => "page",
            PortPurpose::Probes => "probes",
            PortPurpose::Tunnel => "tunnel",
        }
    }

    /// The flag that names another one. The tunnel's port is in the network configuration.
    pub fn flag(&self) -> Option<&'static str> {
        match self.purpose {
            PortPurpose::Health => Some("healthz-port"),
            PortPurpose::Api => Some("page-port"),
            PortPurpose::Probes => Some("probe-port"),
            PortPurpose::Tunnel => None,
        }
    }
}

/// How full a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Entries.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

/// The kernel's limits on neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// net.ipv4.neigh.default.gc_thresh3
    pub v4: Option<u64>,
    /// net.ipv6.neigh.default.gc_thresh3
    pub v6: Option<u64>,
    /// Whether this kernel counts permanent entries: before 5.0 it does.
    pub counts_permanent: bool,
}

/// A kernel module that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Why it could not be loaded.
    pub why: String,
}

/// Packets that came in with wrong checksums in the last two minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksums {
    /// UDP's InCsumErrors.
    pub udp: u64,
    /// TCP's.
    pub tcp: u64,
}

/// Something of another network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The program: `Calico`.
    pub program: String,
    /// Its object: `device cali123`.
    pub object: String,
}

impl Host {
    /// The interface with an index.
    pub fn interface(&self, index: u32) -> Option<&Interface> {
        self.interfaces.known()?.iter().find(|interface| interface.index == index)
    }

    /// The interface with a name.
    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces.known()?.iter().find(|interface| interface.name == name)
    }

    /// The interface with an address.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces.known()?.iter().find(|interface| interface.owns(ip))
    }
}
