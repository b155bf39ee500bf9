//! The store of the leases.

use crate::fact::Fact;
use std::net::IpAddr;
use types::{Access, Problem};

/// Facts about the store of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Description of the store, as text: `etcd at https://192.0.2.250:2379`, `the directory /var/lib/flannel`.
    pub place: String,
    /// The store's IP addresses; empty for a store on this host.
    pub addresses: Vec<IpAddr>,
    /// The options with which a remedy's commands connect to the store.
    pub access: Access,
    /// The reason why the store does not respond; absent while the store responds.
    pub trouble: Fact<Problem>,
    /// The fault of the network configuration in the store; absent for a valid configuration.
    pub config: Fact<Problem>,
    /// The network configuration that flanneld finds at its next start; absent if the configuration is unchanged.
    pub next_config: Fact<NextConfig>,
}

/// A network configuration in the store that differs from the configuration in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextConfig {
    /// A valid configuration. The list contains the names of the JSON members with different values.
    Other(Vec<String>),
    /// A missing or invalid configuration.
    Unusable {
        /// The reason.
        problem: Problem,
        /// The configuration in use as JSON, unless it contains a secret.
        in_use: Option<String>,
    },
}
