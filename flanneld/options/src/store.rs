//! The stores that flags can select, with the code that opens and describes each. Only this module and those of
//! `build`, which read the flags, distinguish the stores.

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

#[derive(Clone, Debug)]
pub enum Store {
    /// Each lease is a key.
    Etcd(Etcd),
    /// Each lease is a file.
    Dir(PathBuf),
    /// Leases are annotations of the Nodes.
    Kube(Box<KubeOptions>),
}

impl Store {
    /// The host and port of the first etcd endpoint, for the route lookup of `--iface=auto`. `None` for a unix
    /// socket, a directory, or Kubernetes.
    pub fn host(&self) -> Option<(&str, u16)> {
        match self {
            Store::Etcd(etcd) => etcd.endpoints.first().and_then(Endpoint::host),
            // The API server is usually reached through a Service, whose route does not lead to the underlay.
            Store::Dir(_) | Store::Kube(_) => None,
        }
    }

    /// As data and as text.
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

    /// The options with which the doctor's commands reach the store, without the password.
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

    /// This host's Node in Kubernetes; empty until the client has read the name, and `None` with other stores.
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
    /// Connects only to Kubernetes, to determine this node's Node. With etcd or a directory, later requests wait
    /// until the store is available. The error is `Unavailable` if a later attempt may open the store, and `Refused`
    /// if none can.
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

/// For people.
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

#[derive(Clone, Debug)]
pub struct Etcd {
    /// At least one.
    pub endpoints: Vec<Endpoint>,
    /// Root of flannel's keys in etcd, without redundant slashes, so that `{prefix}/config` is a key. Empty if the
    /// root is `/`.
    pub prefix: String,
    /// `None` without TLS options, or if no endpoint uses TLS.
    pub tls: Option<Tls>,
    pub user: Option<(String, Secret)>,
}

impl Etcd {
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

/// The etcd client rereads certificate and key files after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// With `None`, the client uses the CA certificates of the system.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A secret text that never appears in output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// For use by the etcd client.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
