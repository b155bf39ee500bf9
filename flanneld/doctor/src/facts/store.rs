//! The store of the leases.

use crate::fact::Fact;
use std::net::IpAddr;
use types::{Access, Problem};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// As text: `etcd at https://192.0.2.250:2379`, `the directory /var/lib/flannel`.
    pub place: String,
    /// Empty for a store on this host.
    pub addresses: Vec<IpAddr>,
    /// The options with which a remedy's commands connect to the store.
    pub access: Access,
    /// Why the store does not respond; absent while it does.
    pub trouble: Fact<Problem>,
    /// Absent for a valid network configuration.
    pub config: Fact<Problem>,
    /// What flanneld finds at its next start; absent if the configuration is unchanged.
    pub next_config: Fact<NextConfig>,
}

/// A network configuration in the store that differs from the one in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextConfig {
    /// A valid one, with the names of the JSON members that differ.
    Other(Vec<String>),
    /// A missing or invalid one.
    Unusable {
        problem: Problem,
        /// The configuration in use as JSON, unless it contains a secret.
        in_use: Option<String>,
    },
}
