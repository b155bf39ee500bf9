//! The host: its interfaces, routes, sysctls, firewalls and ports.

use crate::fact::Fact;
use crate::firewalls::Firewalls;
use ipnet::IpNet;
use netstate::host::is_link_local;
pub use netstate::host::{
    Address, Forwarded, Interface, Neighbour, PolicyRule, Route, RouteAnswer, RouteError,
};
use netstate::names::Mac;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use types::Family;
use types::problem::PortPurpose;

/// Facts about the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The hostname.
    pub name: String,
    /// The host's network interfaces, by index.
    pub interfaces: Fact<Vec<Interface>>,
    /// The routes of the main table that forward packets.
    pub routes: Fact<Vec<Route>>,
    /// The routes of the main table that drop packets, except the routes of flannel.
    pub barring: Fact<Vec<Route>>,
    /// Results of route lookups for the addresses of the store, the peers and the API server.
    pub lookups: Fact<Vec<RouteLookup>>,
    /// Results of route lookups for packets between pods of this node and pods of other nodes.
    pub pod_routes: Fact<Vec<PodRoute>>,
    /// The policy routing rules of the host.
    pub policy_rules: Fact<Vec<PolicyRule>>,
    /// The kernel's neighbour entries on the underlay.
    pub underlay_neighbours: Fact<Vec<Neighbour>>,
    /// The hardware address of another host that answers ARP requests for this node's address; absent if no host answers or flanneld sent no request.
    pub rival: Fact<Mac>,
    /// The sysctls on which the network of pods depends.
    pub sysctls: Fact<Sysctls>,
    /// The host's firewalls, which filter packets.
    pub firewalls: Fact<Firewalls>,
    /// Ports that flanneld needs, but that other programs use.
    pub ports: Fact<Vec<Port>>,
    /// Addresses of the name servers in /etc/resolv.conf.
    pub(crate) name_servers: Fact<Vec<IpAddr>>,
    /// Number of entries in the connection tracking table, and its limit; absent if the kernel tracks no connections.
    pub conntrack: Fact<Fill>,
    /// Kernel modules that flanneld needs but could not load.
    pub modules: Fact<Vec<Module>>,
    /// Packets with checksum errors in the last two minutes.
    pub checksums: Fact<Checksums>,
    /// Devices and files of other pod networks on this host.
    pub foreign: Fact<Vec<Foreign>>,
    /// The number of flannel daemons that serve networks in this network namespace.
    pub daemons: Fact<usize>,
    /// Whether packets have arrived by flannel's device since the doctor last read the interfaces.
    pub tunnel_receives: bool,
}

/// Returns the first IPv4 or IPv6 address of an interface, without link-local and loopback addresses.
pub fn address(interface: &Interface, family: Family) -> Option<IpNet> {
    let usable = |net: &IpNet| {
        Family::from(net) == family && !is_link_local(net.addr()) && !net.addr().is_loopback()
    };
    interface.nets().find(usable)
}

/// Length of the hexadecimal id in the device names of Docker's bridges.
const DOCKER_ID: usize = 12;

/// Returns whether an interface may connect this host to other hosts, because it belongs to no pod, tunnel or container engine.
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

/// Result of the kernel's route lookup for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLookup {
    /// The destination address.
    pub to: IpAddr,
    /// The owner of the address, as text: `the store`, `node-2`.
    pub whose: String,
    /// The kind of the address's owner: the store, the API server or a peer.
    pub kind: LookupPurpose,
    /// The interface and the source address of the route, or the reason why the kernel has no route.
    pub by: Result<RouteAnswer, RouteError>,
}

/// A peer for the lookup of pod packets' routes: the peer's name and one of its subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPeer {
    /// The peer's name; untrusted text.
    pub name: String,
    /// The peer's IPv4 or IPv6 subnet.
    pub subnet: IpNet,
}

/// A packet between a pod of this node and a pod of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPacket {
    /// The peer.
    pub peer: PodPeer,
    /// Whether the packet goes from this node to the peer; otherwise, the packet goes from the peer to this node.
    pub out: bool,
    /// The source and destination addresses of the packet, and its incoming interface.
    pub packet: Forwarded,
}

/// Result of the kernel's route lookup for a packet between pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRoute {
    /// The packet.
    pub packet: PodPacket,
    /// The interface by which the packet leaves, or the reason why the kernel has no route.
    pub by: Result<RouteAnswer, RouteError>,
}

/// Kind of owner of an address whose route the doctor looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupPurpose {
    /// The store of the leases.
    Store,
    /// The API server of Kubernetes.
    ApiServer,
    /// A peer, at the address that the peer's lease publishes.
    Peer,
    /// A peer that does not respond at the address in its lease.
    SilentPeer,
}

/// Sysctls that affect pod packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// The name of the underlay interface.
    pub underlay: String,
    /// net.ipv4.ip_forward; `None` if the file is unreadable.
    pub ip_forward: Option<i64>,
    /// net.ipv6.conf.all.forwarding; `None` if the file is unreadable.
    pub v6_forwarding: Option<i64>,
    /// Devices with accept_ra = 1, sorted. If this node forwards IPv6, devices with accept_ra = 1 lose the routes that routers have announced.
    pub announced: Vec<String>,
    /// Whether br_netfilter is loaded.
    pub br_netfilter: bool,
    /// Reason why flanneld could not load br_netfilter.
    pub module: Option<String>,
    /// net.bridge.bridge-nf-call-iptables; `None` if the file is unreadable.
    pub call_iptables: Option<i64>,
    /// net.bridge.bridge-nf-call-ip6tables; `None` if the file is unreadable.
    pub call_ip6tables: Option<i64>,
    /// Devices on the path of pod packets that do not forward IPv4 although the host does.
    pub closed: Vec<String>,
    /// Addresses of peers behind an interface other than the underlay interface, if rp_filter is strict on the underlay interface.
    pub astray: Vec<IpAddr>,
}

/// flanneld's routing protocol number, as in the output of `ip route`.
pub const FLANNELD: u8 = 241;

/// A port that flanneld needs, but that another program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The UDP or TCP port number.
    pub number: u16,
    /// Whether the port is a UDP port; otherwise, the port is a TCP port.
    pub udp: bool,
    /// The purpose for which flanneld needs the port.
    pub purpose: PortPurpose,
    /// The process that uses the port, if known.
    pub owner: Option<String>,
}

impl Port {
    /// Returns the purpose for which flanneld needs the port, as text.
    pub(crate) fn wanted_for(&self) -> &'static str {
        match self.purpose {
            PortPurpose::Health => "health endpoints",
            PortPurpose::Api => "status API",
            PortPurpose::Probes => "probes",
            PortPurpose::Tunnel => "tunnel",
        }
    }

    /// Returns the flag that sets the port; `None` for the tunnel's port, which the network configuration sets.
    pub fn flag(&self) -> Option<&'static str> {
        match self.purpose {
            PortPurpose::Health => Some("healthz-port"),
            PortPurpose::Api => Some("status-port"),
            PortPurpose::Probes => Some("probe-port"),
            PortPurpose::Tunnel => None,
        }
    }
}

/// Number of entries in a kernel table, and the limit on the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Number of entries that the table contains.
    pub used: u64,
    /// Maximum number of entries in the table.
    pub limit: u64,
}

/// A missing kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of the kernel module.
    pub name: String,
    /// Reason why flanneld could not load the kernel module.
    pub why: String,
}

/// Numbers of packets that arrived with invalid checksums in the last two minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksums {
    /// Increase of the UDP counter InCsumErrors in the last two minutes.
    pub udp: u64,
    /// Increase of the TCP counter InCsumErrors in the last two minutes.
    pub tcp: u64,
}

/// A device or a file of another pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The program: `Calico`.
    pub program: String,
    /// The found object.
    pub object: ForeignObject,
}

/// Kind of an object of another pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignObject {
    /// A device, by name.
    Device(String),
    /// A CNI configuration, by the path of its file.
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
    /// Returns the interfaces; an empty list if they are unknown.
    pub(crate) fn links(&self) -> &[Interface] {
        self.interfaces.known().map_or(&[], Vec::as_slice)
    }

    /// Returns the interface with the given index.
    pub fn interface(&self, index: u32) -> Option<&Interface> {
        self.links().iter().find(|interface| interface.index == index)
    }

    /// Returns the interface with the given name.
    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.links().iter().find(|interface| interface.name == name)
    }

    /// Returns the interface that has the given address.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.links().iter().find(|interface| interface.owns(ip))
    }
}
