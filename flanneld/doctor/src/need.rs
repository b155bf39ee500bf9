//! The facts that a check needs, by name: where one is unavailable, the check is unknown.

use crate::facts::Facts;

/// A fact without which a check knows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The network that this node serves.
    Network,
    /// The interfaces with their addresses.
    Interfaces,
    /// The routes.
    Routes,
    /// The kernel's route lookups for other addresses.
    RouteLookups,
    /// The sysctls.
    Sysctls,
    /// The firewalls.
    Firewalls,
    /// The ports that are taken.
    Ports,
    /// The name servers.
    NameServers,
    /// The table of connections.
    Conntrack,
    /// The limits on neighbours.
    Neighbours,
    /// The kernel modules.
    Modules,
    /// The counters of checksum errors.
    Checksums,
    /// What other networks left.
    Foreign,
    /// The daemons of this host.
    Daemons,
    /// Whether a daemon runs.
    Running,
    /// Which tasks are silent.
    Silent,
    /// The pods of flannel on this node.
    DaemonPods,
    /// The reasons for which the node is not ready.
    Reasons,
    /// The chosen interface.
    Choice,
    /// What other programs keep changing.
    Drift,
    /// What the kernel refuses.
    Kernel,
    /// Whether the store answers.
    Store,
    /// The network's configuration.
    Config,
    /// This node's lease.
    OwnLease,
    /// What it publishes of the device.
    Vtep,
    /// The peers' leases.
    Peers,
    /// The leases that are not used.
    Refused,
    /// What the probes found.
    Mesh,
    /// The peers of WireGuard.
    Wireguard,
    /// subnet.env.
    Env,
    /// The CNI configurations.
    Cni,
    /// The addresses of host-local.
    Ipam,
    /// This node's Node.
    Kubernetes,
}

impl Need {
    /// Returns why the fact is unavailable; `None` if it is known, or known to be absent.
    pub fn missing(self, facts: &Facts) -> Option<&str> {
        let (host, daemon, store, leases, pods) = (
            &facts.host,
            &facts.daemon,
            &facts.store,
            &facts.leases,
            &facts.pods,
        );
        match self {
            Need::Network => facts.network.why(),
            Need::Interfaces => host.interfaces.why(),
            Need::Routes => host.routes.why(),
            Need::RouteLookups => host.lookups.why(),
            Need::Sysctls => host.sysctls.why(),
            Need::Firewalls => host.firewalls.why(),
            Need::Ports => host.ports.why(),
            Need::NameServers => host.name_servers.why(),
            Need::Conntrack => host.conntrack.why(),
            Need::Neighbours => host.neighbours.why(),
            Need::Modules => host.modules.why(),
            Need::Checksums => host.checksums.why(),
            Need::Foreign => host.foreign.why(),
            Need::Daemons => host.daemons.why(),
            Need::Running => daemon.running.why(),
            Need::Silent => daemon.silent.why(),
            Need::DaemonPods => daemon.pods.why(),
            Need::Reasons => daemon.reasons.why(),
            Need::Choice => daemon.choice.why(),
            Need::Drift => daemon.drift.why(),
            Need::Kernel => daemon.kernel_trouble.why(),
            Need::Store => store.trouble.why(),
            Need::Config => store.config.why(),
            Need::OwnLease => leases.own.why(),
            Need::Vtep => leases.vtep.why(),
            Need::Peers => leases.peers.why(),
            Need::Refused => leases.refused.why(),
            Need::Mesh => facts.mesh.why(),
            Need::Wireguard => facts.wireguard.why(),
            Need::Env => pods.env.why(),
            Need::Cni => pods.cni.why(),
            Need::Ipam => pods.ipam.why(),
            Need::Kubernetes => facts.kubernetes.why(),
        }
    }
}
