//! The host: its interfaces, routes, sysctls, firewalls and ports.

use crate::fact::Fact;
use crate::firewalls::Firewalls;
use ipnet::IpNet;
use netstate::host::is_link_local;
pub use netstate::host::{
    Address, Forwarded, Interface, Neighbour, NoRoute, PolicyRule, Route, RouteAnswer,
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
    /// The network interfaces, by index.
    pub interfaces: Fact<Vec<Interface>>,
    /// The routes of the main table that forward packets.
    pub routes: Fact<Vec<Route>>,
    /// The routes of the main table that drop packets, except flannel's own.
    pub barring: Fact<Vec<Route>>,
    /// Route lookups for the addresses of the store, the peers and the API server.
    pub lookups: Fact<Vec<RouteLookup>>,
    /// Route lookups for packets between pods of this node and pods of other nodes.
    pub pod_routes: Fact<Vec<PodRoute>>,
    /// The policy routing rules.
    pub policy_rules: Fact<Vec<PolicyRule>>,
    /// The kernel's neighbour entries on the underlay.
    pub underlay_neighbours: Fact<Vec<Neighbour>>,
    /// The hardware address of another host that answers ARP requests for this node's address; `None` if no host answers or flanneld sent no request.
    pub rival: Option<Mac>,
    /// The sysctls on which pods depend.
    pub sysctls: Fact<Sysctls>,
    /// The firewalls that filter packets.
    pub firewalls: Fact<Firewalls>,
    /// Ports of flannel that other programs use.
    pub ports: Fact<Vec<Port>>,
    /// The name servers of /etc/resolv.conf.
    pub(crate) name_servers: Fact<Vec<IpAddr>>,
    /// Entries and limit of the conntrack table; absent if the kernel tracks no connections.
    pub conntrack: Fact<Fill>,
    /// The limits on neighbour entries.
    pub neighbours: Fact<Neighbours>,
    /// Kernel modules that flannel needs but could not load.
    pub modules: Fact<Vec<Module>>,
    /// Checksum errors of the last two minutes.
    pub checksums: Fact<Checksums>,
    /// Objects of other pod networks on this host.
    pub foreign: Fact<Vec<Foreign>>,
    /// The number of flannel daemons that serve networks in this network namespace.
    pub daemons: Fact<usize>,
}

/// Returns the first address of an interface in a family that is neither link-local nor a loopback address.
pub fn address(interface: &Interface, family: Family) -> Option<IpNet> {
    let usable = |net: &IpNet| {
        Family::from(net) == family && !is_link_local(net.addr()) && !net.addr().is_loopback()
    };
    interface.nets().find(usable)
}

/// Length of the hexadecimal id in the names of Docker's bridges.
const DOCKER_ID: usize = 12;

/// Returns whether an interface may connect this host to other hosts, because it belongs to no pod, tunnel or container engine.
pub fn joins_hosts(interface: &Interface) -> bool {
    const OTHERS: [&str; 10] = [
        "flannel", "cni", "docker", "virbr", "cali", "cilium", "lxc", "kube-", "weave", "podman",
    ];
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
        && !OTHERS
            .iter()
            .any(|prefix| interface.name.starts_with(prefix))
}

/// The kernel's route lookup for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLookup {
    /// The destination address.
    pub to: IpAddr,
    /// The owner of the address: `the store`, `node-2`.
    pub whose: String,
    /// The kind of the address's owner.
    pub kind: LookupPurpose,
    /// The interface and the source address, or the reason for a missing route.
    pub by: Result<RouteAnswer, NoRoute>,
}

/// A peer for route lookups: its name and one of its subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPeer {
    /// The node's name; untrusted text.
    pub name: String,
    /// The peer's subnet of one family.
    pub subnet: IpNet,
}

/// A packet between a pod of this node and a pod of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPacket {
    /// The peer.
    pub peer: PodPeer,
    /// Whether the packet goes to the peer. Otherwise the packet goes to this node.
    pub out: bool,
    /// The packet's addresses and its incoming interface.
    pub packet: Forwarded,
}

/// The kernel's route lookup for a packet between pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRoute {
    /// The packet.
    pub packet: PodPacket,
    /// The interface, or the reason for a missing route.
    pub by: Result<RouteAnswer, NoRoute>,
}

/// The owner of an address whose route the doctor looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupPurpose {
    /// The store of the leases.
    Store,
    /// The API server of Kubernetes.
    ApiServer,
    /// A peer, at the address that its lease publishes.
    Peer,
    /// A peer that does not respond at the address of its lease.
    SilentPeer,
}

/// Sysctls on which pod packets depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// The name of the underlay interface.
    pub underlay: String,
    /// net.ipv4.ip_forward; `None` if the file is unreadable.
    pub ip_forward: Option<i64>,
    /// net.ipv6.conf.all.forwarding; `None` if the file is unreadable.
    pub v6_forwarding: Option<i64>,
    /// Devices with accept_ra = 1, sorted. As soon as this node forwards IPv6, such devices lose the routes that routers have announced.
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
    /// Addresses of peers that this node reaches through an interface other than the underlay interface, if
    /// rp_filter is strict on the underlay interface.
    pub astray: Vec<IpAddr>,
}

/// flanneld's routing protocol number, as in `ip route`.
pub const FLANNELD: u8 = 241;

/// A port of flannel that another program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The number of the port.
    pub number: u16,
    /// Whether the port is a UDP port. Otherwise, the port is a TCP port.
    pub udp: bool,
    /// The purpose for which flannel needs the port.
    pub purpose: PortPurpose,
    /// The process that uses the port, if known.
    pub owner: Option<String>,
}

impl Port {
    /// Returns the purpose for which flannel needs the port, as text.
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

/// Entries and limit of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The number of entries in use.
    pub used: u64,
    /// The limit on entries.
    pub limit: u64,
}

/// The kernel's limits on neighbour entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// net.ipv4.neigh.default.gc_thresh3: the limit for IPv4.
    pub v4: Option<u64>,
    /// net.ipv6.neigh.default.gc_thresh3: the limit for IPv6.
    pub v6: Option<u64>,
    /// Whether the kernel applies the limits to permanent entries, as kernels before 5.0 do.
    pub(crate) counts_permanent: bool,
}

/// A missing kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of the module.
    pub name: String,
    /// Reason why flanneld could not load the module.
    pub why: String,
}

/// Numbers of packets that arrived with invalid checksums in the last two minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksums {
    /// Increase of UDP's InCsumErrors.
    pub udp: u64,
    /// Increase of TCP's InCsumErrors.
    pub tcp: u64,
}

/// An object of another pod network.
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
    /// A CNI configuration, by path.
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
    /// Returns the interface with this index.
    pub fn interface(&self, index: u32) -> Option<&Interface> {
        self.interfaces
            .known()?
            .iter()
            .find(|interface| interface.index == index)
    }

    /// Returns the interface with this name.
    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .known()?
            .iter()
            .find(|interface| interface.name == name)
    }

    /// Returns the interface that has this address.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces
            .known()?
            .iter()
            .find(|interface| interface.owns(ip))
    }
}
