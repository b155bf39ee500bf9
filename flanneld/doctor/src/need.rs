//! Names of the facts that the doctor's checks need. A check has an unknown result if a fact that it needs is unavailable.

use crate::facts::Facts;

macro_rules! needs {
    ($($(#[$doc:meta])* $need:ident => $($field:ident).+,)+) => {
        /// A fact about this node that a check needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Need {
            $($(#[$doc])* $need,)+
        }

        impl Need {
            /// Why the fact is unavailable; `None` if it is known or absent.
            pub fn missing(self, facts: &Facts) -> Option<&str> {
                match self {
                    $(Self::$need => facts.$($field).+.why(),)+
                }
            }

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
    Network => network,
    Interfaces => host.interfaces,
    Routes => host.routes,
    Barring => host.barring,
    /// For addresses outside the pods' network.
    RouteLookups => host.lookups,
    PodRoutes => host.pod_routes,
    PolicyRules => host.policy_rules,
    UnderlayNeighbours => host.underlay_neighbours,
    Rival => host.rival,
    Sysctls => host.sysctls,
    Firewalls => host.firewalls,
    /// Ports that flanneld needs, but that other programs use.
    Ports => host.ports,
    NameServers => host.name_servers,
    Conntrack => host.conntrack,
    /// Modules that flanneld needs but could not load.
    Modules => host.modules,
    /// Errors in the last two minutes.
    Checksums => host.checksums,
    /// Devices and files of other pod networks on this host.
    Foreign => host.foreign,
    /// The number of flannel daemons on this host.
    Daemons => host.daemons,
    /// Probes on the path of pod packets.
    PodPaths => pods.paths,
    Running => daemon.running,
    /// Tasks of flanneld that have stopped sending heartbeats.
    Silent => daemon.silent,
    /// flannel's pods on this node.
    DaemonPods => daemon.pods,
    /// Why this node is not ready.
    Reasons => daemon.reasons,
    /// The chosen interface.
    Choice => daemon.choice,
    /// flannel's kernel objects that other programs change repeatedly.
    Drift => daemon.drift,
    /// Whether the store responds.
    Store => store.trouble,
    /// Whether the network configuration in the store is valid.
    Config => store.config,
    /// The network configuration that flanneld finds at its next start.
    NextConfig => store.next_config,
    OwnLease => leases.own,
    Peers => leases.peers,
    /// Leases in the store that this node does not use.
    Refused => leases.refused,
    /// Probes that this node sends to its peers.
    Mesh => mesh,
    Wireguard => wireguard,
    Env => pods.env,
    Cni => pods.cni,
    /// Addresses that host-local has reserved for pods.
    Ipam => pods.ipam,
    /// The Node object of this node.
    Kubernetes => kubernetes,
}
