//! Options for access to the store of the leases, in the commands that flannel's programs print.

use std::path::PathBuf;

/// Command-line access to the store of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The store is unknown.
    #[default]
    Unknown,
    /// With etcdctl.
    Etcd(Etcd),
    /// Directory that contains the leases as files.
    Directory(PathBuf),
    /// With kubectl.
    Kubernetes,
}

/// Options of flanneld's connection to etcd, without the password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Etcd {
    /// The endpoints.
    pub endpoints: Vec<String>,
    /// Prefix of flannel's keys.
    pub prefix: String,
    /// The certificate authority.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The user.
    pub user: Option<String>,
}
