//! How to reach the Kubernetes API, and as which Node.

use super::annotations::Prefix;
use std::path::PathBuf;
use std::time::Duration;

/// Everything the manager needs to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeOptions {
    /// Addresses of API servers, in the order in which to try; empty: those of the kubeconfig, or of the pod's environment.
    pub urls: Vec<String>,
    /// A kubeconfig; none: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// What the annotations begin with.
    pub prefix: Prefix,
    /// The network's configuration.
    pub net_conf: PathBuf,
    /// Whether to clear the condition NetworkUnavailable.
    pub clear_condition: bool,
    /// Which Node this is.
    pub identity: Identity,
    /// What is told to the API server as the client's name; managed fields show the part before the slash.
    pub user_agent: String,
    /// How long the host had been up when the daemon started: a whole cluster may have been switched on together.
    pub up: Duration,
}

/// Which Node a daemon serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The one with this name.
    Node(String),
    /// The one that runs this pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// None: a tool that looks at all of them.
    Nobody,
}
