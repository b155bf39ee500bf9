//! Options for access to the store of the leases, in the commands that flannel's programs print.

use std::path::PathBuf;

/// For commands that flannel's programs print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Unknown,
    /// With etcdctl.
    Etcd(Etcd),
    /// It contains the leases as files.
    Directory(PathBuf),
    /// With kubectl.
    Kubernetes,
}

/// Those of flanneld's connection, without the password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Etcd {
    pub endpoints: Vec<String>,
    /// Prefix of flannel's keys.
    pub prefix: String,
    /// The certificate authority.
    pub ca: Option<PathBuf>,
    /// The certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    pub user: Option<String>,
}
