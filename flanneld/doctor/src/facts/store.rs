//! The store of the leases.

use crate::fact::Fact;
use std::net::IpAddr;
use std::path::PathBuf;
use types::Problem;

/// The store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// What it is: `etcd at https://192.0.2.250:2379`, `the directory /var/lib/flannel`.
    pub place: String,
    /// Its addresses; empty for a store on this host.
    pub addresses: Vec<IpAddr>,
    /// How commands reach it.
    pub access: Access,
    /// Why it does not answer; absent while it does.
    pub trouble: Fact<Problem>,
    /// What is wrong with the network's configuration in it; absent if nothing.
    pub config: Fact<Problem>,
}

/// How commands reach the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Not known.
    #[default]
    Unknown,
    /// By etcdctl.
    Etcd(Etcd),
    /// As files in this directory.
    Directory(PathBuf),
    /// By kubectl.
    Kubernetes,
}

/// The options by which flanneld reaches etcd, without the password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Etcd {
    /// The endpoints.
    pub endpoints: Vec<String>,
    /// The root of the keys.
    pub prefix: String,
    /// The certificate authority.
    pub ca: Option<PathBuf>,
    /// The client's certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The user.
    pub user: Option<String>,
}
