//! Names of the facts that checks need. If such a fact is unavailable, the result of the check is unknown.

use crate::facts::Facts;

macro_rules! needs {
    ($($(#[$doc:meta])* $need:ident => $($field:ident).+,)+) => {
        /// A fact that a check needs.
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

            /// Makes the fact unavailable.
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
    /// The interfaces with their addresses.
    Interfaces => host.interfaces,
    /// The routes that forward packets.
    Routes => host.routes,
    /// The routes that drop packets.
    Barring => host.barring,
    /// The kernel's route lookups for addresses outside the pods' network.
    RouteLookups => host.lookups,
    /// The kernel's route lookups for pod packets.
    PodRoutes => host.pod_routes,
    /// The policy routing rules.
    PolicyRules => host.policy_rules,
    /// The neighbours on the underlay.
    UnderlayNeighbours => host.underlay_neighbours,
    /// The sysctls.
    Sysctls => host.sysctls,
    /// The firewalls.
    Firewalls => host.firewalls,
    /// The ports of flannel that other programs use.
    Ports => host.ports,
    /// The name servers.
    NameServers => host.name_servers,
    /// Entries and limit of the conntrack table.
    Conntrack => host.conntrack,
    /// The limits on neighbour entries.
    Neighbours => host.neighbours,
    /// The missing kernel modules.
    Modules => host.modules,
    /// The counters of checksum errors.
    Checksums => host.checksums,
    /// The objects of other pod networks.
    Foreign => host.foreign,
    /// The number of flannel daemons on this host.
    Daemons => host.daemons,
    /// Results of the probes on the path of pod packets.
    PodPaths => pods.paths,
    /// Whether a daemon runs.
    Running => daemon.running,
    /// The tasks that have stopped sending heartbeats.
    Silent => daemon.silent,
    /// flannel's pods on this node.
    DaemonPods => daemon.pods,
    /// The reasons why the node is not ready.
    Reasons => daemon.reasons,
    /// The chosen interface.
    Choice => daemon.choice,
    /// The objects that other programs keep changing.
    Drift => daemon.drift,
    /// Whether the store responds.
    Store => store.trouble,
    /// The state of the network configuration.
    Config => store.config,
    /// The network configuration that the next start uses.
    NextConfig => store.next_config,
    /// This node's lease.
    OwnLease => leases.own,
    /// The device that this node's lease publishes.
    Vtep => leases.vtep,
    /// The peers' leases.
    Peers => leases.peers,
    /// The leases that this node does not use.
    Refused => leases.refused,
    /// Results of the probes.
    Mesh => mesh,
    /// The WireGuard peers.
    Wireguard => wireguard,
    /// subnet.env.
    Env => pods.env,
    /// The CNI configurations.
    Cni => pods.cni,
    /// The addresses that host-local keeps.
    Ipam => pods.ipam,
    /// This node's Node object.
    Kubernetes => kubernetes,
}
