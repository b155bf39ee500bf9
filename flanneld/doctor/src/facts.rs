//! What is known of a node. Each part is gathered by whoever can: the daemon its own state, [`crate::look`] the host.

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
use ipnet::IpNet;
use types::Subnets;
use types::{Encapsulation, Family, Profile};

/// Everything that the checks depend on. By default nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The backends that there are.
    pub backends: Vec<&'static Profile>,
    /// The network that this node serves.
    pub network: Fact<Network>,
    /// The host.
    pub host: host::Host,
    /// The daemon.
    pub daemon: daemon::Daemon,
    /// The store of the leases.
    pub store: store::Store,
    /// The leases.
    pub leases: leases::Leases,
    /// What this node's probes of its peers found.
    pub mesh: Fact<mesh::Mesh>,
    /// The peers of WireGuard; absent with another backend.
    pub wireguard: Fact<wireguard::Wireguard>,
    /// What pods depend on beside the network.
    pub pods: pods::Pods,
    /// This node's Node; absent without Kubernetes.
    pub kubernetes: Fact<kubernetes::Kubernetes>,
}

/// The network that this node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The cluster's networks.
    pub networks: Subnets,
    /// This node's own subnets.
    pub own: Subnets,
    /// The backend, if it is known.
    pub backend: Option<&'static Profile>,
    /// What packets of pods travel in between nodes, if it is known.
    pub encapsulation: Option<Encapsulation>,
    /// The VNI, with vxlan.
    pub vni: Option<u32>,
    /// FLANNEL_MTU.
    pub mtu: Option<u32>,
    /// Whether the traffic rules are in nftables rather than iptables.
    pub nftables: bool,
    /// Whether there are rules that accept forwarded packets.
    pub forward: bool,
}

impl Network {
    /// What packets of pods travel in between nodes; `None` without a tunnel, or where it is not known.
    pub fn tunnel(&self) -> Option<Encapsulation> {
        self.encapsulation
            .filter(|encapsulation| !encapsulation.is_none())
    }

    /// Whether an address is inside the cluster's networks.
    pub fn contains(&self, net: &IpNet) -> bool {
        self.networks.nets().any(|network| network.contains(net))
    }

    /// Whether packets of the tunnels travel in a family of the underlay.
    pub(crate) fn travels_in(&self, family: Family) -> bool {
        self.tunnel()
            .and_then(|tunnel| tunnel.outer())
            .map_or(self.has(family), |outer| outer == family)
    }

    /// Whether a family is in use.
    pub fn has(&self, family: Family) -> bool {
        family.pick(self.v4(), self.v6())
    }

    /// Whether packets between nodes are encrypted: then nothing is asked beside the overlay network but ping.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.backend.is_some_and(|backend| backend.encrypts)
    }

    /// Whether IPv4 is in use.
    pub fn v4(&self) -> bool {
        self.networks.v4().is_some()
    }

    /// Whether IPv6 is in use.
    pub fn v6(&self) -> bool {
        self.networks.v6().is_some()
    }

    /// The device through which packets of pods go to other nodes; `None` where the backend has none, or it is not known.
    pub fn device(&self, family: Family) -> Option<String> {
        // Where it is not known how a backend is configured, IPv4's device is taken for that of both families.
        let assumed = self.encapsulation.is_none() && self.v4();
        let backend = self.backend?;
        let device = backend.device_of(family, self.encapsulation);
        let device = device.or_else(|| {
            backend
                .devices
                .iter()
                .find(|device| assumed && device.family.is_none())
        });
        device?.named(self.vni)
    }

    /// The bytes that the backend adds to a packet over a family, as far as they are known.
    pub fn overhead(&self, family: Family) -> Option<u32> {
        self.backend.map(|backend| backend.overhead.over(family))
    }
}
