//! The conditions that can keep a node from being ready.

use std::fmt;

/// Why a node is not ready. /readyz and /status show the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// flanneld cannot install a CNI configuration.
    CniConf,
    /// flanneld cannot read the network configuration.
    Config,
    /// Another program holds the port of the health endpoint. Pods work without it.
    HealthPort,
    /// The kernel is out of sync. An object that it refuses for a single peer does not set this condition.
    Kernel,
    /// There is no lease, or this node cannot keep it.
    Lease,
    /// No lease of another node is usable.
    Peers,
    /// flanneld cannot apply the traffic rules.
    Rules,
    /// The start is incomplete.
    Start,
    /// The store does not respond.
    Store,
    /// flanneld cannot write subnet.env.
    SubnetEnv,
    /// No interface reaches the other nodes.
    Underlay,
    /// The watch of the other nodes' leases is interrupted.
    Watch,
}

impl Condition {
    /// Sorted by name.
    pub const ALL: [Condition; 12] = [
        Condition::CniConf,
        Condition::Config,
        Condition::HealthPort,
        Condition::Kernel,
        Condition::Lease,
        Condition::Peers,
        Condition::Rules,
        Condition::Start,
        Condition::Store,
        Condition::SubnetEnv,
        Condition::Underlay,
        Condition::Watch,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Condition::CniConf => "cni-conf",
            Condition::Config => "config",
            Condition::HealthPort => "health-port",
            Condition::Kernel => "kernel",
            Condition::Lease => "lease",
            Condition::Peers => "peers",
            Condition::Rules => "rules",
            Condition::Start => "start",
            Condition::Store => "store",
            Condition::SubnetEnv => "subnet.env",
            Condition::Underlay => "underlay",
            Condition::Watch => "watch",
        }
    }

    /// True if new pods have no working network meanwhile. They can start while the store does not respond or the
    /// lease watch is interrupted.
    pub const fn stops_new_pods(self) -> bool {
        matches!(
            self,
            Condition::Kernel | Condition::Rules | Condition::SubnetEnv | Condition::Underlay
        )
    }

    /// True if the code that sets the condition also logs it and its reason.
    pub const fn is_logged_by_its_finder(self) -> bool {
        matches!(
            self,
            Condition::HealthPort
                | Condition::Rules
                | Condition::Underlay
                | Condition::SubnetEnv
                | Condition::CniConf
        )
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_names_are_unique_and_sorted() {
        assert!(
            Condition::ALL.iter().map(|condition| condition.as_str()).is_sorted_by(|a, b| a < b)
        );
        assert!(Condition::ALL.is_sorted());
    }
}
