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
}
