//! The store of the leases.

use crate::fact::Fact;
use std::net::IpAddr;
use types::{Access, Problem};

/// Facts about the store of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// What it is: `etcd at https://192.0.2.250:2379`, `the directory /var/lib/flannel`.
    pub place: String,
    /// Its addresses; empty for a store on this host.
    pub addresses: Vec<IpAddr>,
    /// How commands in remedies reach it.
    pub access: Access,
    /// Why it does not answer; absent while it does.
    pub trouble: Fact<Problem>,
    /// What is wrong with the network's configuration in it; absent if nothing.
    pub config: Fact<Problem>,
    /// What the next start of a running daemon finds there; absent if it is the configuration in use.
    pub next_config: Fact<NextConfig>,
}

/// A network configuration other than the one in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextConfig {
    /// It can be used; the members that differ, by name.
    Other(Vec<String>),
    /// It is missing or wrong.
    Unusable {
        /// Why.
        problem: Problem,
        /// The one in use, as JSON, unless it holds a secret.
        in_use: Option<String>,
    },
}
