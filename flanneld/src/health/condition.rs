//! The conditions that can keep a node from being ready.

use std::fmt;

/// A reason why a node is not ready. /readyz and /status show the name of the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// A CNI configuration that flanneld cannot install.
    CniConf,
    /// A network configuration that flanneld cannot read.
    Config,
    /// A port of the health endpoint that another program holds. Pods work without the endpoint.
    HealthPort,
    /// A kernel out of sync with the desired state. An object that the kernel refuses for a single peer does not set
    /// this condition.
    Kernel,
    /// Lack of a lease, or a lease that this node cannot keep.
    Lease,
    /// Lack of any usable lease of another node.
    Peers,
    /// Traffic rules that flanneld cannot apply.
    Rules,
    /// An incomplete start.
    Start,
    /// A store that does not respond.
    Store,
    /// A subnet.env that flanneld cannot write.
    SubnetEnv,
    /// Lack of an interface that reaches the other nodes.
    Underlay,
    /// An interrupted watch of the other nodes' leases.
    Watch,
}

impl Condition {
    /// All conditions, sorted by name.
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

    /// Returns the name of the condition.
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

    /// Returns whether new pods have no working network while the condition is set. New pods can start while the store
    /// does not respond or the lease watch is interrupted.
    pub const fn stops_new_pods(self) -> bool {
        matches!(
            self,
            Condition::Kernel | Condition::Rules | Condition::SubnetEnv | Condition::Underlay
        )
    }

    /// Returns whether the code that sets the condition also logs the condition and its reason.
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
