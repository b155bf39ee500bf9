//! Facts about a node. The daemon provides its own state, and [`crate::look`] provides the state of the host.

pub mod argument;
pub mod daemon;
pub mod host;
pub mod kubernetes;
pub mod leases;
pub mod mesh;
pub mod pods;
pub mod store;
pub mod wireguard;

use crate::fact::Fact;
use host::{Interface, RouteLookup};
use ipnet::IpNet;
use leases::Peer;
use mesh::Path;
use types::{Encapsulation, Family, Problem, Profile, Subnets};

/// All facts on which the checks depend. Every fact is unavailable by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The profiles of all backends.
    pub backends: Vec<&'static Profile>,
    /// The pod network that this node serves.
    pub network: Fact<Network>,
    /// The host and its kernel.
    pub host: host::Host,
    /// The daemon flanneld and its options.
    pub daemon: daemon::Daemon,
    /// The store of the leases.
    pub store: store::Store,
    /// The leases of this node and of its peers.
    pub leases: leases::Leases,
    /// Results of the probes that this node sends to its peers.
    pub mesh: Fact<mesh::Mesh>,
    /// The WireGuard peers of this node; absent with other backends.
    pub wireguard: Fact<wireguard::Wireguard>,
    /// Facts about pods: subnet.env, the CNI configuration, and reserved addresses.
    pub pods: pods::Pods,
    /// This node's Node object; absent without Kubernetes.
    pub kubernetes: Fact<kubernetes::Kubernetes>,
}

impl Facts {
    /// Returns the interfaces of the host; an empty list if they are unknown.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        self.host.links()
    }

    /// Returns the chosen underlay interface.
    pub(crate) fn underlay(&self) -> Option<&Interface> {
        self.host.named(self.underlay_name()?)
    }

    /// Returns the name of the chosen underlay interface.
    pub(crate) fn underlay_name(&self) -> Option<&str> {
        Some(&self.daemon.choice.known()?.interface)
    }

    /// Returns the peers' leases; none if they are unknown.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> + Clone {
        self.leases.peers.known().into_iter().flatten()
    }

    /// Returns the paths that this node probes; an empty list without probes.
    pub(crate) fn paths(&self) -> &[Path] {
        self.mesh.known().map_or(&[], |mesh| &mesh.paths)
    }

    /// Returns the paths of an address family on which the probes allow a verdict.
    pub(crate) fn judged(&self, family: Family) -> Vec<&Path> {
        self.mesh.known().map_or_else(Vec::new, |mesh| mesh.judged(family))
    }

    /// Returns the lease with the subnet of a path.
    pub(crate) fn peer_at(&self, path: &Path) -> Option<&Peer> {
        let mut peers = self.peers();
        peers.find(|peer| peer.subnets.nets().any(|net| net == path.subnet))
    }

    /// Returns the results of route lookups; none if they are unknown.
    pub(crate) fn lookups(&self) -> impl Iterator<Item = &RouteLookup> {
        self.host.lookups.known().into_iter().flatten()
    }

    /// Returns whether flanneld certainly does not run.
    pub(crate) fn is_stopped(&self) -> bool {
        self.daemon.running.known() == Some(&false)
    }

    /// Returns the reason why a readiness condition does not hold.
    pub(crate) fn reason(&self, condition: &str) -> Option<&Problem> {
        self.daemon.reasons.known()?.get(condition)
    }
}

/// The network that this node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The cluster's pod networks, one for each address family.
    pub networks: Subnets,
    /// This node's own subnets, one for each address family.
    pub own: Subnets,
    /// The profile of the backend, if it is known.
    pub backend: Option<&'static Profile>,
    /// The encapsulation of pod packets between nodes, if it is known.
    pub encapsulation: Option<Encapsulation>,
    /// The VNI of the vxlan device; `None` unless the backend is vxlan.
    pub vni: Option<u32>,
    /// FLANNEL_MTU: the MTU of pods in bytes.
    pub mtu: Option<u32>,
    /// Whether flannel's traffic rules are in nftables rather than iptables.
    pub nftables: bool,
    /// Whether flannel has traffic rules that accept forwarded packets.
    pub forward: bool,
}

impl Network {
    /// Returns the encapsulation of pod packets between nodes; `None` without a tunnel, or if the encapsulation is unknown.
    pub fn tunnel(&self) -> Option<Encapsulation> {
        self.encapsulation.filter(|encapsulation| !encapsulation.is_none())
    }

    /// Returns whether a network is part of a pod network of the cluster.
    pub fn contains(&self, net: &IpNet) -> bool {
        self.networks.nets().any(|network| network.contains(net))
    }

    /// Returns whether tunnel packets travel between nodes over the given address family.
    pub(crate) fn travels_in(&self, family: Family) -> bool {
        self.tunnel()
            .and_then(|tunnel| tunnel.outer())
            .map_or(self.has(family), |outer| outer == family)
    }

    /// Returns whether the pod network has the given address family.
    pub fn has(&self, family: Family) -> bool {
        family.pick(self.v4(), self.v6())
    }

    /// Returns whether the backend encrypts packets between nodes. If the backend encrypts these packets, this node probes the underlay only with ping.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.backend.is_some_and(|backend| backend.encrypts)
    }

    /// Returns whether the pod network has IPv4 addresses.
    pub fn v4(&self) -> bool {
        self.networks.v4().is_some()
    }

    /// Returns whether the pod network has IPv6 addresses.
    pub fn v6(&self) -> bool {
        self.networks.v6().is_some()
    }

    /// Returns the device that sends pod packets to other nodes; `None` if the backend has no device or if the device is unknown.
    pub fn device(&self, family: Family) -> Option<String> {
        // If the configuration of the backend is unknown, the IPv4 device is assumed to serve both families.
        let assumed = self.encapsulation.is_none() && self.v4();
        let backend = self.backend?;
        let device = backend.device_of(family, self.encapsulation);
        let device = device
            .or_else(|| backend.devices.iter().find(|device| assumed && device.family.is_none()));
        device?.named(self.vni)
    }

    /// Returns the number of bytes that the backend adds to a packet over IPv4 or IPv6; `None` if the backend is unknown.
    pub fn overhead(&self, family: Family) -> Option<u32> {
        self.backend.map(|backend| backend.overhead.over(family))
    }
}
