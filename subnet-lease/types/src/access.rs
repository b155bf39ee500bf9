//! How commands reach the store of the leases.

use std::path::PathBuf;

/// How commands reach a store.
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
