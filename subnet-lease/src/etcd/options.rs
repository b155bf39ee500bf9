//! Options for the connection to etcd.

use std::path::PathBuf;

/// From the flags.
#[derive(Clone, Default)]
pub struct EtcdOptions {
    /// In order of preference: URLs, `host:port`, or `unix:` paths.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, without a trailing slash.
    pub prefix: String,
    /// File of CA certificates; `None` for the system's certificates.
    pub ca: Option<PathBuf>,
    /// PEM files of the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name and password; `None` for requests without a log-in.
    pub user: Option<(String, String)>,
}

impl std::fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
