//! Names of the facts that the doctor's checks need. A check has an unknown result if a fact that it needs is unavailable.

use crate::facts::Facts;

macro_rules! needs {
    ($($(#[$doc:meta])* $need:ident => $($field:ident).+,)+) => {
        /// A fact about this node that a check of the doctor needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Need {
            $($(#[$doc])* $need,)+
        }

        impl Need {
            /// Returns the reason why the fact is unavailable; `None` if the fact is known or absent.
            pub fn missing(self, facts: &Facts) -> Option<&str> {
                match self {
                    $(Self::$need => facts.$($field).+.why(),)+
                }
            }

            /// Marks the fact as unavailable, for tests.
            #[cfg(test)]
            pub(crate) fn withhold(self, facts: &mut Facts) {
                match self {
                    $(Self::$need => facts.$($field).+ = crate::fact::Fact::unavailable("permission denied"),)+
                }
            }
        }
    };
}

needs! {
    /// The network that this node serves.
    Network => network,
    /// The host's network interfaces with their addresses.
    Interfaces => host.interfaces,
    /// The host's routes that forward packets.
    Routes => host.routes,
    /// The host's routes that drop packets.
    Barring => host.barring,
    /// Results of the kernel's route lookups for addresses outside the pods' network.
    RouteLookups => host.lookups,
    /// Results of the kernel's route lookups for pod packets.
    PodRoutes => host.pod_routes,
    /// The policy routing rules.
    PolicyRules => host.policy_rules,
    /// The kernel's neighbour entries on the underlay.
    UnderlayNeighbours => host.underlay_neighbours,
    /// The hardware address of another host with this node's address.
    Rival => host.rival,
    /// The sysctls.
    Sysctls => host.sysctls,
    /// The firewalls.
    Firewalls => host.firewalls,
    /// The ports that flanneld needs, but that other programs use.
    Ports => host.ports,
    /// The name servers.
    NameServers => host.name_servers,
    /// The number of entries in the conntrack table, and its limit.
    Conntrack => host.conntrack,
    /// The kernel modules that flanneld needs but could not load.
    Modules => host.modules,
    /// The numbers of packets with checksum errors in the last two minutes.
    Checksums => host.checksums,
    /// Devices and files of other pod networks on this host.
    Foreign => host.foreign,
    /// The number of flannel daemons on this host.
    Daemons => host.daemons,
    /// Results of the probes on the path of pod packets.
    PodPaths => pods.paths,
    /// Whether a daemon runs.
    Running => daemon.running,
    /// The tasks of flanneld that have stopped sending heartbeats.
    Silent => daemon.silent,
    /// flannel's pods on this node.
    DaemonPods => daemon.pods,
    /// The reasons why this node is not ready.
    Reasons => daemon.reasons,
    /// The chosen interface.
    Choice => daemon.choice,
    /// flannel's kernel objects that other programs change repeatedly.
    Drift => daemon.drift,
    /// Whether the store of the leases responds.
    Store => store.trouble,
    /// Whether the network configuration in the store is valid.
    Config => store.config,
    /// The network configuration that flanneld finds at its next start.
    NextConfig => store.next_config,
    /// This node's lease.
    OwnLease => leases.own,
    /// The peers' leases.
    Peers => leases.peers,
    /// The leases in the store that this node does not use.
    Refused => leases.refused,
    /// Results of the probes that this node sends to its peers.
    Mesh => mesh,
    /// The WireGuard peers.
    Wireguard => wireguard,
    /// subnet.env.
    Env => pods.env,
    /// The CNI configurations.
    Cni => pods.cni,
    /// The addresses that the IPAM plugin host-local has reserved for pods.
    Ipam => pods.ipam,
    /// The Kubernetes Node object of this node.
    Kubernetes => kubernetes,
}
