//! Options for access to the store of the leases, for printed commands.

use std::path::PathBuf;

/// Access to a store from the command line.
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
    /// The root of the keys.
    pub prefix: String,
    /// The certificate authority.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The user.
    pub user: Option<String>,
}
