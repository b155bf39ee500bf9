//! The stores that flags can select, with the code that opens and describes each store. Only this module and the
//! modules of `build`, which read the flags, distinguish the stores.

use crate::endpoint::Endpoint;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use subnet_lease::dir::DirManager;
use subnet_lease::etcd::{EtcdManager, EtcdOptions};
use subnet_lease::kube::{Identity, KubeManager, KubeOptions, NodeClient};
use subnet_lease::manager::{Error, LeaseStore, SubnetManager};
use types::access::{self, Access};
use types::problem::ConfigPlace;

/// The store of the leases.
#[derive(Clone, Debug)]
pub enum Store {
    /// etcd, which stores each lease as a key.
    Etcd(Etcd),
    /// A directory, which stores each lease as a file.
    Dir(PathBuf),
    /// Kubernetes, which stores leases as annotations of the Nodes.
    Kube(Box<KubeOptions>),
}

impl Store {
    /// Returns the host and port of the first etcd endpoint, for the route lookup of `--iface=auto`. The result is
    /// `None` for a unix socket, a directory, or Kubernetes.
    pub fn host(&self) -> Option<(&str, u16)> {
        match self {
            Store::Etcd(etcd) => etcd.endpoints.first().and_then(Endpoint::host),
            // The API server is usually reached through a Service, whose route does not lead to the underlay.
            Store::Dir(_) | Store::Kube(_) => None,
        }
    }

    /// Returns the location of the network configuration, as data and as text.
    pub fn config_place(&self) -> (ConfigPlace, String) {
        match self {
            Store::Etcd(etcd) => {
                let endpoints: Vec<String> =
                    etcd.endpoints.iter().map(ToString::to_string).collect();
                let key = format!("{}/config", etcd.prefix);
                let at = format!("the key {key} of etcd at {}", endpoints.join(", "));
                (ConfigPlace::Key(key), at)
            }
            Store::Dir(folder) => {
                let file = folder.join("config");
                let at = format!("the file {}", file.display());
                (ConfigPlace::File(file), at)
            }
            Store::Kube(kube) => {
                let at =
                    format!("the ConfigMap that the pod mounts as {}", kube.net_conf.display());
                (ConfigPlace::Mounted(kube.net_conf.clone()), at)
            }
        }
    }

    /// Returns the options with which the doctor's commands reach the store, without the password.
    pub fn access(&self) -> Access {
        match self {
            Store::Etcd(etcd) => Access::Etcd(access::Etcd {
                endpoints: etcd.endpoints.iter().map(ToString::to_string).collect(),
                prefix: etcd.prefix.clone(),
                ca: etcd.tls.as_ref().and_then(|tls| tls.ca.clone()),
                client: etcd.tls.as_ref().and_then(|tls| tls.client.clone()),
                user: etcd.user.as_ref().map(|(name, _)| name.clone()),
            }),
            Store::Dir(folder) => Access::Directory(folder.clone()),
            Store::Kube(_) => Access::Kubernetes,
        }
    }

    /// Returns the name of this host's Node in Kubernetes; empty until the client has read the name, and `None` with other stores.
    pub fn node(&self) -> Option<String> {
        match self {
            Store::Kube(kube) => Some(match &kube.identity {
                Identity::Node(name) => name.clone(),
                _ => String::new(),
            }),
            Store::Etcd(_) | Store::Dir(_) => None,
        }
    }

    /// Opens the store for a daemon.
    ///
    /// The function connects only to Kubernetes, to determine this node's Node. If the store is etcd or a directory, later
    /// requests wait until the store is available.
    ///
    /// # Errors
    /// Returns `Unavailable` if a later attempt may open the store, and `Refused` if no attempt can open it.
    pub async fn open(&self) -> Result<Arc<dyn SubnetManager>, Error> {
        Ok(match self {
            Store::Dir(folder) => Arc::new(DirManager::new(folder.clone())),
            Store::Etcd(etcd) => Arc::new(EtcdManager::new(etcd.options())),
            Store::Kube(kube) => Arc::new(KubeManager::open(KubeOptions::clone(kube)).await?),
        })
    }

    /// Opens the store without a connection, for a tool that serves no node.
    pub fn look(self, user_agent: String) -> Box<dyn LeaseStore> {
        match self {
            Store::Dir(folder) => Box::new(DirManager::new(folder)),
            Store::Etcd(etcd) => Box::new(EtcdManager::new(etcd.options())),
            Store::Kube(kube) => Box::new(NodeClient::new(KubeOptions { user_agent, ..*kube })),
        }
    }
}

/// Formats the location of the leases, for people.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Dir(path) => write!(f, "{}", path.display()),
            Store::Kube(kube) => {
                let servers = match (&kube.kubeconfig, kube.urls.as_slice()) {
                    (Some(file), []) => format!("the server of {}", file.display()),
                    (None, []) => "the server of the pod's environment".to_owned(),
                    (_, urls) => urls
                        .iter()
                        .map(|url| url.to_string().trim_end_matches('/').to_owned())
                        .collect::<Vec<_>>()
                        .join(", "),
                };
                write!(f, "the Nodes of Kubernetes at {servers}")
            }
            Store::Etcd(etcd) => {
                let endpoints: Vec<String> =
                    etcd.endpoints.iter().map(ToString::to_string).collect();
                write!(f, "etcd at {} under {}", endpoints.join(", "), etcd.prefix)
            }
        }
    }
}

/// Options for the connection and the authentication to etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    /// The client addresses of etcd, at least one.
    pub endpoints: Vec<Endpoint>,
    /// Root of flannel's keys in etcd, without redundant slashes, so that `{prefix}/config` is a key. The prefix is empty if the root is `/`.
    pub prefix: String,
    /// TLS options; `None` without TLS options, or if no endpoint uses TLS.
    pub tls: Option<Tls>,
    /// User name and password, if given.
    pub user: Option<(String, Secret)>,
}

impl Etcd {
    /// Returns the options of the etcd client.
    pub fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: self.endpoints.iter().map(ToString::to_string).collect(),
            prefix: self.prefix.clone(),
            ca: self.tls.as_ref().and_then(|tls| tls.ca.clone()),
            identity: self.tls.as_ref().and_then(|tls| tls.client.clone()),
            user: self
                .user
                .as_ref()
                .map(|(name, password)| (name.clone(), password.reveal().to_owned())),
        }
    }
}

/// Files for TLS. The etcd client rereads certificate and key files after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// File of the CA certificate; with `None`, the client uses the CA certificates of the system.
    pub ca: Option<PathBuf>,
    /// Files of the client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A secret text that never appears in output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text so that `Debug` does not print it.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the secret text, for use by the etcd client.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
