//! The host: its interfaces, routes, sysctls, firewalls and ports.

use crate::fact::Fact;
use crate::firewalls::Firewalls;
use ipnet::IpNet;
use netstate::host::is_link_local;
pub use netstate::host::{Address, Forwarded, Interface, Neighbour, PolicyRule, Route, RouteError};
use netstate::names::Mac;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use types::Family;
use types::problem::PortPurpose;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    /// By index.
    pub interfaces: Fact<Vec<Interface>>,
    /// Those of the main table that forward packets.
    pub routes: Fact<Vec<Route>>,
    /// Those of the main table that drop packets, without flannel's.
    pub barring: Fact<Vec<Route>>,
    /// For the addresses of the store, the peers and the API server.
    pub lookups: Fact<Vec<RouteLookup>>,
    /// For packets between pods of this node and pods of other nodes.
    pub pod_routes: Fact<Vec<PodRoute>>,
    pub policy_rules: Fact<Vec<PolicyRule>>,
    pub underlay_neighbours: Fact<Vec<Neighbour>>,
    /// The hardware address of another host that answers ARP requests for this node's address. Absent if no host answers or flanneld sent no request.
    pub rival: Fact<Mac>,
    /// Those on which the network of pods depends.
    pub sysctls: Fact<Sysctls>,
    pub firewalls: Fact<Firewalls>,
    /// Ports that flanneld needs, but that other programs use.
    pub ports: Fact<Vec<Port>>,
    /// From /etc/resolv.conf.
    pub(crate) name_servers: Fact<Vec<IpAddr>>,
    /// Of the connection tracking table; absent if the kernel tracks no connections.
    pub conntrack: Fact<Fill>,
    /// Modules that flanneld needs but could not load.
    pub modules: Fact<Vec<Module>>,
    /// Errors in the last two minutes.
    pub checksums: Fact<Checksums>,
    /// Devices and files of other pod networks on this host.
    pub foreign: Fact<Vec<Foreign>>,
    /// The flannel daemons that serve networks in this network namespace.
    pub daemons: Fact<usize>,
    /// Packets have arrived by flannel's device since the doctor last read the interfaces.
    pub tunnel_receives: bool,
}

/// The first address of the family that is neither link-local nor loopback.
pub fn address(interface: &Interface, family: Family) -> Option<IpNet> {
    let usable = |net: &IpNet| {
        Family::from(net) == family && !is_link_local(net.addr()) && !net.addr().is_loopback()
    };
    interface.nets().find(usable)
}

/// Length of the hexadecimal id in the names of Docker's bridges.
const DOCKER_ID: usize = 12;

/// True if it may connect this host to others: it belongs to no pod, tunnel or container engine.
pub fn joins_hosts(interface: &Interface) -> bool {
    const OTHERS: [&str; 10] =
        ["flannel", "cni", "docker", "virbr", "cali", "cilium", "lxc", "kube-", "weave", "podman"];
    // Docker names its bridges `br-` plus an id, whereas br-ex and br-lan are uplinks.
    let is_dockers = interface
        .name
        .strip_prefix("br-")
        .is_some_and(|id| id.len() == DOCKER_ID && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let virtual_kind = matches!(
        interface.kind.as_str(),
        "veth" | "vxlan" | "tun" | "dummy" | "ipip" | "wireguard" | "nodelocaldns"
    );
    // If the host is itself a container, its uplink may be a veth.
    let kind = !virtual_kind || interface.kind == "veth" && interface.master.is_none();
    interface.up
        && !interface.loopback
        && kind
        && !is_dockers
        && !OTHERS.iter().any(|prefix| interface.name.starts_with(prefix))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLookup {
    pub to: IpAddr,
    /// As text: `the store`, `node-2`.
    pub whose: String,
    pub kind: LookupPurpose,
    /// Or why the kernel has no route.
    pub by: Result<Route, RouteError>,
}

/// A peer for the lookup of pod packets' routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPeer {
    /// Untrusted text.
    pub name: String,
    pub subnet: IpNet,
}

/// A packet between a pod of this node and a pod of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPacket {
    pub peer: PodPeer,
    /// From this node to the peer, not the other way.
    pub out: bool,
    pub packet: Forwarded,
}

/// How the kernel routes a packet between pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRoute {
    pub packet: PodPacket,
    /// Or why the kernel has no route.
    pub by: Result<Route, RouteError>,
}

/// Whose address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupPurpose {
    Store,
    ApiServer,
    /// At the address that its lease publishes.
    Peer,
    /// It does not respond at the address in its lease.
    SilentPeer,
}

/// Sysctls that affect pod packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    pub underlay: String,
    /// net.ipv4.ip_forward; `None` if the file is unreadable.
    pub ip_forward: Option<i64>,
    /// net.ipv6.conf.all.forwarding; `None` if the file is unreadable.
    pub v6_forwarding: Option<i64>,
    /// Devices with accept_ra = 1, sorted. If this node forwards IPv6, they lose the routes that routers have announced.
    pub announced: Vec<String>,
    pub br_netfilter: bool,
    /// Why flanneld could not load br_netfilter.
    pub module: Option<String>,
    /// net.bridge.bridge-nf-call-iptables; `None` if the file is unreadable.
    pub call_iptables: Option<i64>,
    /// net.bridge.bridge-nf-call-ip6tables; `None` if the file is unreadable.
    pub call_ip6tables: Option<i64>,
    /// Devices on the path of pod packets that do not forward IPv4 although the host does.
    pub closed: Vec<String>,
    /// Peers behind another interface, if rp_filter is strict on the underlay interface.
    pub astray: Vec<IpAddr>,
}

/// Routing protocol number, as in the output of `ip route`.
pub const FLANNELD: u8 = 241;

/// A port that flanneld needs, but that another program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub number: u16,
    /// UDP, not TCP.
    pub udp: bool,
    pub purpose: PortPurpose,
    /// The process that uses the port.
    pub owner: Option<String>,
}

impl Port {
    pub(crate) fn wanted_for(&self) -> &'static str {
        match self.purpose {
            PortPurpose::Health => "health endpoints",
            PortPurpose::Api => "status API",
            PortPurpose::Probes => "probes",
            PortPurpose::Tunnel => "tunnel",
        }
    }

    /// `None` for the tunnel's port, which the network configuration sets.
    pub fn flag(&self) -> Option<&'static str> {
        match self.purpose {
            PortPurpose::Health => Some("healthz-port"),
            PortPurpose::Api => Some("status-port"),
            PortPurpose::Probes => Some("probe-port"),
            PortPurpose::Tunnel => None,
        }
    }
}

/// How full a kernel table is, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub used: u64,
    pub limit: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// Why flanneld could not load the module.
    pub why: String,
}

/// Packets with invalid checksums in the last two minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksums {
    pub udp: u64,
    pub tcp: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// As text: `Calico`.
    pub program: String,
    pub object: ForeignObject,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignObject {
    /// By name.
    Device(String),
    /// By the path of its file.
    Configuration(PathBuf),
}

impl fmt::Display for ForeignObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => write!(f, "device {name}"),
            Self::Configuration(path) => write!(f, "configuration {}", path.display()),
        }
    }
}

impl Host {
    /// Empty if they are unknown.
    pub(crate) fn links(&self) -> &[Interface] {
        self.interfaces.known().map_or(&[], Vec::as_slice)
    }

    pub fn interface(&self, index: u32) -> Option<&Interface> {
        self.links().iter().find(|interface| interface.index == index)
    }

    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.links().iter().find(|interface| interface.name == name)
    }

    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.links().iter().find(|interface| interface.owns(ip))
    }
}
