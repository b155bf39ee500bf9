//! The facts that a check needs, by name: where one is unavailable, the check is unknown.

use crate::facts::Facts;

macro_rules! needs {
    ($($(#[$doc:meta])* $need:ident => $($field:ident).+,)+) => {
        /// A fact without which a check knows nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Need {
            $($(#[$doc])* $need,)+
        }

        impl Need {
            /// Returns why the fact is unavailable; `None` if it is known, or known to be absent.
            pub fn missing(self, facts: &Facts) -> Option<&str> {
                match self {
                    $(Self::$need => facts.$($field).+.why(),)+
                }
            }

            /// Takes the fact away.
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
    /// The routes.
    Routes => host.routes,
    /// The routes that drop packets.
    Barring => host.barring,
    /// The kernel's route lookups for other addresses.
    RouteLookups => host.lookups,
    /// The kernel's route lookups for packets of pods.
    PodRoutes => host.pod_routes,
    /// The rules of policy routing.
    PolicyRules => host.policy_rules,
    /// The neighbours on the underlay.
    UnderlayNeighbours => host.underlay_neighbours,
    /// The sysctls.
    Sysctls => host.sysctls,
    /// The firewalls.
    Firewalls => host.firewalls,
    /// The ports that are taken.
    Ports => host.ports,
    /// The name servers.
    NameServers => host.name_servers,
    /// The table of connections.
    Conntrack => host.conntrack,
    /// The limits on neighbours.
    Neighbours => host.neighbours,
    /// The kernel modules.
    Modules => host.modules,
    /// The counters of checksum errors.
    Checksums => host.checksums,
    /// What other networks left.
    Foreign => host.foreign,
    /// The daemons of this host.
    Daemons => host.daemons,
    /// What the probes on the path of pods found.
    PodPaths => pods.paths,
    /// Whether a daemon runs.
    Running => daemon.running,
    /// Which tasks are silent.
    Silent => daemon.silent,
    /// The pods of flannel on this node.
    DaemonPods => daemon.pods,
    /// The reasons for which the node is not ready.
    Reasons => daemon.reasons,
    /// The chosen interface.
    Choice => daemon.choice,
    /// What other programs keep changing.
    Drift => daemon.drift,
    /// Whether the store answers.
    Store => store.trouble,
    /// The network's configuration.
    Config => store.config,
    /// The network's configuration for the next start.
    NextConfig => store.next_config,
    /// This node's lease.
    OwnLease => leases.own,
    /// What it publishes of the device.
    Vtep => leases.vtep,
    /// The peers' leases.
    Peers => leases.peers,
    /// The leases that are not used.
    Refused => leases.refused,
    /// What the probes found.
    Mesh => mesh,
    /// The peers of WireGuard.
    Wireguard => wireguard,
    /// subnet.env.
    Env => pods.env,
    /// The CNI configurations.
    Cni => pods.cni,
    /// The addresses of host-local.
    Ipam => pods.ipam,
    /// This node's Node.
    Kubernetes => kubernetes,
}
