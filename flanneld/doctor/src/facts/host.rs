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
    /// Its name.
    pub name: String,
    /// Its network interfaces, by index.
    pub interfaces: Fact<Vec<Interface>>,
    /// The routes of the main table that forward packets.
    pub routes: Fact<Vec<Route>>,
    /// The routes of the main table that drop packets, but for flannel's own.
    pub barring: Fact<Vec<Route>>,
    /// Where packets to some addresses leave: those of the store, the peers and the API server.
    pub lookups: Fact<Vec<RouteLookup>>,
    /// Where packets between pods of this node and of others go.
    pub pod_routes: Fact<Vec<PodRoute>>,
    /// The rules of policy routing.
    pub policy_rules: Fact<Vec<PolicyRule>>,
    /// The neighbours on the underlay that the kernel has asked for.
    pub underlay_neighbours: Fact<Vec<Neighbour>>,
    /// The hardware address of another host that answers for this node's address; none if nobody was asked, or nobody does.
    pub rival: Option<Mac>,
    /// The sysctls that pods depend on.
    pub sysctls: Fact<Sysctls>,
    /// The firewalls that filter packets.
    pub firewalls: Fact<Firewalls>,
    /// Ports of flannel that other programs use.
    pub ports: Fact<Vec<Port>>,
    /// The name servers of /etc/resolv.conf.
    pub(crate) name_servers: Fact<Vec<IpAddr>>,
    /// The table of connections; absent where the kernel tracks none.
    pub conntrack: Fact<Fill>,
    /// The limits of the tables of neighbours.
    pub neighbours: Fact<Neighbours>,
    /// Kernel modules that cannot be loaded though they are needed.
    pub modules: Fact<Vec<Module>>,
    /// Checksum errors of the last minutes.
    pub checksums: Fact<Checksums>,
    /// Objects of other pod networks on this host.
    pub foreign: Fact<Vec<Foreign>>,
    /// How many daemons of flannel serve networks in this network namespace.
    pub daemons: Fact<usize>,
}

/// Returns the first address of an interface in a family that other machines can use.
pub fn address(interface: &Interface, family: Family) -> Option<IpNet> {
    let usable = |net: &IpNet| {
        Family::from(net) == family && !is_link_local(net.addr()) && !net.addr().is_loopback()
    };
    interface.nets().find(usable)
}

/// The length of the number in the names of Docker's bridges.
const DOCKER_ID: usize = 12;

/// Returns whether an interface may join this host to others: it is not of pods, a tunnel or a container engine.
pub fn joins_hosts(interface: &Interface) -> bool {
    const OTHERS: [&str; 10] = [
        "flannel", "cni", "docker", "virbr", "cali", "cilium", "lxc", "kube-", "weave", "podman",
    ];
    // Docker's bridges are called so; br-ex and br-lan are uplinks.
    let is_dockers = interface
        .name
        .strip_prefix("br-")
        .is_some_and(|id| id.len() == DOCKER_ID && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let virtual_kind = matches!(
        interface.kind.as_str(),
        "veth" | "vxlan" | "tun" | "dummy" | "ipip" | "wireguard" | "nodelocaldns"
    );
    // A veth may be the uplink of a host that is a container itself.
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
    /// Why it is looked up.
    pub kind: LookupPurpose,
    /// The interface and the source address, or why there is no route.
    pub by: Result<RouteAnswer, NoRoute>,
}

/// A peer, for look-ups: its name and a subnet of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPeer {
    /// The node's name; foreign text.
    pub name: String,
    /// Its subnet of one family.
    pub subnet: IpNet,
}

/// A packet between a pod of this node and one of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPacket {
    /// The peer.
    pub peer: PodPeer,
    /// Whether it goes to the peer; otherwise it comes from there.
    pub out: bool,
    /// Its addresses, and the interface by which it comes.
    pub packet: Forwarded,
}

/// The kernel's route lookup for a packet between pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRoute {
    /// The packet.
    pub packet: PodPacket,
    /// The interface, or why there is no route.
    pub by: Result<RouteAnswer, NoRoute>,
}

/// The owner of an address that is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupPurpose {
    /// The store of the leases.
    Store,
    /// The API server of Kubernetes.
    ApiServer,
    /// A peer, at the address that its lease publishes.
    Peer,
    /// A peer that answers nothing, at the same address.
    SilentPeer,
}

/// The sysctls that pods' packets depend on. `None`: there is no such file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// The name of the underlay interface.
    pub underlay: String,
    /// net.ipv4.ip_forward; `None` if it cannot be read.
    pub ip_forward: Option<i64>,
    /// net.ipv6.conf.all.forwarding; `None` if it cannot be read.
    pub v6_forwarding: Option<i64>,
    /// Devices that would lose what routers announce as soon as this node forwards IPv6, sorted: their accept_ra is 1.
    pub announced: Vec<String>,
    /// Whether br_netfilter is loaded.
    pub br_netfilter: bool,
    /// Why it could not be loaded.
    pub module: Option<String>,
    /// net.bridge.bridge-nf-call-iptables; `None` if it cannot be read.
    pub call_iptables: Option<i64>,
    /// net.bridge.bridge-nf-call-ip6tables; `None` if it cannot be read.
    pub call_ip6tables: Option<i64>,
    /// Devices on the path of pods' packets that do not forward IPv4, though the host does.
    pub closed: Vec<String>,
    /// Addresses of peers that this node reaches through another interface while rp_filter is strict on the underlay.
    pub astray: Vec<IpAddr>,
}

/// flanneld's routing protocol, as in `ip route`.
pub const FLANNELD: u8 = 241;

/// A port that is taken, or that was wanted and is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The number of the port.
    pub number: u16,
    /// Whether it is UDP; otherwise TCP.
    pub udp: bool,
    /// What flannel needs it for.
    pub purpose: PortPurpose,
    /// The process that uses it, as far as that can be determined.
    pub owner: Option<String>,
}

impl Port {
    /// Returns what flannel needs it for, as text.
    pub(crate) fn wanted_for(&self) -> &'static str {
        match self.purpose {
            PortPurpose::Health => "health endpoints",
            PortPurpose::Api => "status API",
            PortPurpose::Probes => "probes",
            PortPurpose::Tunnel => "tunnel",
        }
    }

    /// Returns the flag that sets another port; `None` for the tunnel's, which is in the network configuration.
    pub fn flag(&self) -> Option<&'static str> {
        match self.purpose {
            PortPurpose::Health => Some("healthz-port"),
            PortPurpose::Api => Some("status-port"),
            PortPurpose::Probes => Some("probe-port"),
            PortPurpose::Tunnel => None,
        }
    }
}

/// How full a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The number of entries.
    pub used: u64,
    /// The limit on entries.
    pub limit: u64,
}

/// The kernel's limits on neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// net.ipv4.neigh.default.gc_thresh3: the limit for IPv4.
    pub v4: Option<u64>,
    /// net.ipv6.neigh.default.gc_thresh3: the limit for IPv6.
    pub v6: Option<u64>,
    /// Whether this kernel applies the limits to permanent entries, as kernels before 5.0 do.
    pub(crate) counts_permanent: bool,
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
    /// New InCsumErrors of UDP.
    pub udp: u64,
    /// New InCsumErrors of TCP.
    pub tcp: u64,
}

/// An object of another pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The program: `Calico`.
    pub program: String,
    /// The object that was found.
    pub object: ForeignObject,
}

/// An object of another program for pod networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignObject {
    /// A device with this name.
    Device(String),
    /// A configuration of CNI at this path.
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
    /// Returns the interface with an index.
    pub fn interface(&self, index: u32) -> Option<&Interface> {
        self.interfaces
            .known()?
            .iter()
            .find(|interface| interface.index == index)
    }

    /// Returns the interface with a name.
    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .known()?
            .iter()
            .find(|interface| interface.name == name)
    }

    /// Returns the interface that has an address.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces
            .known()?
            .iter()
            .find(|interface| interface.owns(ip))
    }
}
