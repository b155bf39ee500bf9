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

/// What the checks judge. Every fact is unavailable by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// All backends.
    pub backends: Vec<&'static Profile>,
    pub network: Fact<Network>,
    pub host: host::Host,
    pub daemon: daemon::Daemon,
    pub store: store::Store,
    pub leases: leases::Leases,
    /// Probes that this node sends to its peers.
    pub mesh: Fact<mesh::Mesh>,
    /// Absent with other backends.
    pub wireguard: Fact<wireguard::Wireguard>,
    pub pods: pods::Pods,
    /// This node's Node object; absent without Kubernetes.
    pub kubernetes: Fact<kubernetes::Kubernetes>,
}

impl Facts {
    /// Empty if they are unknown.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        self.host.links()
    }

    pub(crate) fn underlay(&self) -> Option<&Interface> {
        self.host.named(self.underlay_name()?)
    }

    pub(crate) fn underlay_name(&self) -> Option<&str> {
        Some(&self.daemon.choice.known()?.interface)
    }

    /// Empty if they are unknown.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> + Clone {
        self.leases.peers.known().into_iter().flatten()
    }

    /// Empty without probes.
    pub(crate) fn paths(&self) -> &[Path] {
        self.mesh.known().map_or(&[], |mesh| &mesh.paths)
    }

    /// The paths of a family on which the probes allow a verdict.
    pub(crate) fn judged(&self, family: Family) -> Vec<&Path> {
        self.mesh.known().map_or_else(Vec::new, |mesh| mesh.judged(family))
    }

    /// The lease with the subnet of the path.
    pub(crate) fn peer_at(&self, path: &Path) -> Option<&Peer> {
        let mut peers = self.peers();
        peers.find(|peer| peer.subnets.nets().any(|net| net == path.subnet))
    }

    /// Empty if they are unknown.
    pub(crate) fn lookups(&self) -> impl Iterator<Item = &RouteLookup> {
        self.host.lookups.known().into_iter().flatten()
    }

    /// True only if it is certain.
    pub(crate) fn is_stopped(&self) -> bool {
        self.daemon.running.known() == Some(&false)
    }

    /// Why the readiness condition does not hold.
    pub(crate) fn reason(&self, condition: &str) -> Option<&Problem> {
        self.daemon.reasons.known()?.get(condition)
    }
}

/// The pod network that this node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The cluster's pod networks.
    pub networks: Subnets,
    /// This node's subnets.
    pub own: Subnets,
    pub backend: Option<&'static Profile>,
    /// Of pod packets between nodes.
    pub encapsulation: Option<Encapsulation>,
    /// `None` unless the backend is vxlan.
    pub vni: Option<u32>,
    /// FLANNEL_MTU: the MTU of pods in bytes.
    pub mtu: Option<u32>,
    /// flannel's traffic rules are in nftables, not in iptables.
    pub nftables: bool,
    /// flannel has traffic rules that accept forwarded packets.
    pub forward: bool,
}

impl Network {
    /// `None` without a tunnel, or if the encapsulation is unknown.
    pub fn tunnel(&self) -> Option<Encapsulation> {
        self.encapsulation.filter(|encapsulation| !encapsulation.is_none())
    }

    /// True if the network is part of a pod network of the cluster.
    pub fn contains(&self, net: &IpNet) -> bool {
        self.networks.nets().any(|network| network.contains(net))
    }

    /// True if tunnel packets travel between nodes over the family.
    pub(crate) fn travels_in(&self, family: Family) -> bool {
        self.tunnel()
            .and_then(|tunnel| tunnel.outer())
            .map_or(self.has(family), |outer| outer == family)
    }

    pub fn has(&self, family: Family) -> bool {
        family.pick(self.v4(), self.v6())
    }

    /// With encryption, this node probes the underlay only with ping.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.backend.is_some_and(|backend| backend.encrypts)
    }

    pub fn v4(&self) -> bool {
        self.networks.v4().is_some()
    }

    pub fn v6(&self) -> bool {
        self.networks.v6().is_some()
    }

    /// Sends pod packets to other nodes; `None` if the backend has no device or it is unknown.
    pub fn device(&self, family: Family) -> Option<String> {
        // If the configuration of the backend is unknown, the IPv4 device is assumed to serve both families.
        let assumed = self.encapsulation.is_none() && self.v4();
        let backend = self.backend?;
        let device = backend.device_of(family, self.encapsulation);
        let device = device
            .or_else(|| backend.devices.iter().find(|device| assumed && device.family.is_none()));
        device?.named(self.vni)
    }

    /// The bytes that the backend adds to a packet over the family.
    pub fn overhead(&self, family: Family) -> Option<u32> {
        self.backend.map(|backend| backend.overhead.over(family))
    }
}
