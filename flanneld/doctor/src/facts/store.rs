//! The store of the leases.

use crate::fact::Fact;
use std::net::IpAddr;
use types::{Access, Problem};

/// Facts about the store of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Description of the store: `etcd at https://192.0.2.250:2379`, `the directory /var/lib/flannel`.
    pub place: String,
    /// The store's addresses; empty for a store on this host.
    pub addresses: Vec<IpAddr>,
    /// The options with which commands in remedies reach the store.
    pub access: Access,
    /// The reason why the store does not respond; absent while the store responds.
    pub trouble: Fact<Problem>,
    /// The fault of the network configuration in the store; absent for a valid configuration.
    pub config: Fact<Problem>,
    /// The configuration that a running daemon finds at its next start; absent if the configuration is unchanged.
    pub next_config: Fact<NextConfig>,
}

/// A network configuration other than the configuration in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextConfig {
    /// A valid configuration. The value contains the names of the members that differ.
    Other(Vec<String>),
    /// A missing or invalid configuration.
    Unusable {
        /// The reason.
        problem: Problem,
        /// The configuration in use as JSON, unless it contains a secret.
        in_use: Option<String>,
    },
}
