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

use crate::carrier::Carrier;
use crate::fact::Fact;
use ipnet::IpNet;
use subnet_lease::Subnets;

/// Everything that the checks depend on. By default nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
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
    /// The backend's type, if it is known.
    pub backend: Option<String>,
    /// What packets of pods travel in between nodes; `None` without a tunnel, or where it is not known.
    pub carrier: Option<Carrier>,
    /// The UDP port of IPv6's packets, where they have a device and a port of their own.
    pub port_v6: Option<u16>,
    /// The family of the tunnels' own packets, where those of all families travel in one.
    pub outer_ipv6: Option<bool>,
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
    /// The UDP port of the tunnel, where it has one and no more.
    pub fn port(&self) -> Option<u16> {
        match &self.carrier {
            Some(Carrier::Udp(ports)) if ports.len() == 1 => ports.first().copied(),
            _ => None,
        }
    }

    /// Whether an address is inside the cluster's networks.
    pub fn contains(&self, net: &IpNet) -> bool {
        self.networks.nets().any(|network| network.contains(net))
    }

    /// The UDP port of encapsulated packets of a family.
    pub fn port_of(&self, ipv6: bool) -> Option<u16> {
        let Some(Carrier::Udp(ports)) = &self.carrier else { return None };
        let own = self.port_v6.filter(|_| ipv6);
        own.or_else(|| ports.iter().copied().find(|port| Some(*port) != self.port_v6)).or(self.port_v6)
    }

    /// Whether packets of the tunnels travel in a family of the underlay.
    pub fn travels_in(&self, ipv6: bool) -> bool {
        self.outer_ipv6.map_or(if ipv6 { self.v6() } else { self.v4() }, |outer| outer == ipv6)
    }

    /// Whether packets between nodes are encrypted: then nothing is asked beside the overlay network but ping.
    pub fn is_encrypted(&self) -> bool {
        self.backend.as_deref() == Some("wireguard")
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
    pub fn device(&self, ipv6: bool) -> Option<String> {
        match (self.backend.as_deref()?, self.vni) {
            ("udp", _) => Some("flannel0".to_owned()),
            ("wireguard", _) if ipv6 && self.port_v6.is_some() => Some("flannel-wg-v6".to_owned()),
            // A network of IPv6 alone may have either.
            ("wireguard", _) if self.v4() => Some("flannel-wg".to_owned()),
            ("vxlan", Some(vni)) if ipv6 => Some(format!("flannel-v6.{vni}")),
            ("vxlan", Some(vni)) => Some(format!("flannel.{vni}")),
            _ => None,
        }
    }

    /// The bytes that the backend adds to a packet, as far as they are known.
    pub fn overhead(&self) -> Option<u32> {
        match self.backend.as_deref()? {
            "vxlan" => Some(50),
            "udp" => Some(28),
            "ipip" => Some(20),
            "wireguard" => Some(80),
            "host-gw" | "alloc" => Some(0),
            _ => None,
        }
    }
}
