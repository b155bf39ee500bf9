//! The environment of a case: managers on a store, and direct access to the store for reading and writing.

use crate::api_server::{Api, Server};
use crate::cluster::Cluster;
use crate::etcd_server::{EtcdServer, Version};
use std::path::Path;
use std::sync::{Arc, Mutex};
use subnet_lease::dir::DirManager;
use subnet_lease::etcd::{EtcdManager, EtcdOptions};
use subnet_lease::manager::SubnetManager;

/// A property that not every store has. All stores have a configuration, managers, and leases that a case can list and show as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Leases in the form of Go flannel's keys and values, which a test can write and delete directly.
    Keys,
    /// The nodes choose the subnets, and determine the owners of keys among themselves.
    Choice,
    /// Keys that are attached to expiring leases. A key without a lease is a reservation.
    Expiry,
    /// A test can replace them with other file types.
    Files,
    /// Cases share it.
    Etcd,
    /// The case may stop, restore and lock it.
    OwnEtcd,
    /// Those of a Kubernetes cluster that has assigned a subnet to each.
    Nodes,
}

/// Directory, etcd or Kubernetes, with its properties.
pub(crate) struct Kind {
    pub name: &'static str,
    pub has: &'static [Need],
    store: Choice,
}

enum Choice {
    Dir,
    Etcd(Version),
    Kube(Server),
}

const ETCD: &[Need] = &[Need::Keys, Need::Choice, Need::Expiry, Need::Etcd, Need::OwnEtcd];

pub(crate) const KINDS: [Kind; 5] = [
    Kind { name: "kubernetes", has: &[Need::Nodes], store: Choice::Kube(Server::Real) },
    Kind { name: "kubernetes_fake", has: &[Need::Nodes], store: Choice::Kube(Server::Fake) },
    Kind { name: "directory", has: &[Need::Keys, Need::Choice, Need::Files], store: Choice::Dir },
    Kind { name: "etcd_3_4", has: ETCD, store: Choice::Etcd(Version::V3_4) },
    Kind { name: "etcd_3_7", has: ETCD, store: Choice::Etcd(Version::V3_7) },
];

/// Of a case's keys, in an etcd that no other case uses.
pub(crate) const PREFIX: &str = "/coreos.com/network";

pub(crate) struct Bed {
    store: Store,
    prefix: String,
}

enum Store {
    Dir(tempfile::TempDir),
    Shared(Arc<EtcdServer>),
    Own(Box<EtcdServer>),
    Kube(Box<Cluster>),
}

/// Shared by cases, one per version; the first case that needs one starts it.
static SHARED: Mutex<Vec<Arc<EtcdServer>>> = Mutex::new(Vec::new());

/// Shared by cases, one per kind; the first case that needs one starts it.
static KUBE: Mutex<Vec<(Server, Arc<Api>)>> = Mutex::new(Vec::new());

pub(crate) fn stop() {
    SHARED.lock().unwrap().clear();
    KUBE.lock().unwrap().clear();
}

fn kube(kind: Server) -> Arc<Api> {
    let mut servers = KUBE.lock().unwrap();
    if let Some((_, server)) = servers.iter().find(|(known, _)| *known == kind) {
        return server.clone();
    }
    servers.push((kind, Arc::new(Api::start(kind))));
    servers.last().unwrap().1.clone()
}

fn shared(version: Version) -> Arc<EtcdServer> {
    let mut servers = SHARED.lock().unwrap();
    if let Some(server) = servers.iter().find(|server| server.version == version) {
        return server.clone();
    }
    let mut server = EtcdServer::new(version);
    server.start();
    servers.push(Arc::new(server));
    servers.last().unwrap().clone()
}

impl Kind {
    pub(crate) fn bed(&self, case: &str, needs: &[Need]) -> Bed {
        let of = |store| Bed { store, prefix: String::new() };
        let version = match self.store {
            Choice::Dir => return of(Store::Dir(tempfile::tempdir().unwrap())),
            Choice::Kube(server) => {
                return of(Store::Kube(Box::new(Cluster::new(kube(server), case))));
            }
            Choice::Etcd(version) => version,
        };
        if needs.contains(&Need::OwnEtcd) {
            let mut server = EtcdServer::new(version);
            server.start();
            return Bed { store: Store::Own(Box::new(server)), prefix: PREFIX.to_owned() };
        }
        Bed { store: Store::Shared(shared(version)), prefix: format!("/{case}") }
    }
}

impl Bed {
    /// On Kubernetes, also creates the Node if it does not exist.
    pub(crate) async fn node(&self, name: &str) -> Arc<dyn SubnetManager> {
        let Store::Kube(cluster) = &self.store else {
            return self.manager();
        };
        cluster.register(name);
        Arc::new(cluster.manager(name).await)
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        match &self.store {
            Store::Kube(cluster) => cluster,
            _ => panic!("no Nodes here"),
        }
    }

    pub(crate) fn manager(&self) -> Arc<dyn SubnetManager> {
        match self.folder() {
            Some(folder) => Arc::new(DirManager::new(folder.to_owned())),
            None => Arc::new(EtcdManager::new(self.options())),
        }
    }

    /// For the connection to the case's etcd.
    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.etcd().endpoint()],
            prefix: self.prefix.clone(),
            ..EtcdOptions::default()
        }
    }

    /// The store's directory; `None` for another store.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.store {
            Store::Dir(folder) => Some(folder.path()),
            _ => None,
        }
    }

    pub(crate) fn etcd(&self) -> &EtcdServer {
        match &self.store {
            Store::Shared(server) => server,
            Store::Own(server) => server,
            Store::Dir(_) | Store::Kube(_) => panic!("no etcd here"),
        }
    }

    pub(crate) fn own_etcd(&mut self) -> &mut EtcdServer {
        match &mut self.store {
            Store::Own(server) => server,
            _ => panic!("no etcd that the case may stop"),
        }
    }

    /// The full key for a name below the prefix.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn key(&self, key: &str) -> String {
        self.path(&format!("subnets/{key}"))
    }

    pub(crate) fn configure(&self, text: &str) {
        if let Store::Kube(cluster) = &self.store {
            return cluster.configure(text);
        }
        match self.folder() {
            Some(folder) => std::fs::write(folder.join("config"), text).unwrap(),
            None => {
                self.etcd().ctl(&["put", &self.path("config"), text]);
            }
        }
    }

    /// As an operator does.
    pub(crate) fn put(&self, key: &str, value: &str) {
        match self.folder() {
            Some(folder) => {
                let subnets = folder.join("subnets");
                std::fs::create_dir_all(&subnets).unwrap();
                std::fs::write(subnets.join(".hand"), value).unwrap();
                std::fs::rename(subnets.join(".hand"), subnets.join(key)).unwrap();
            }
            None => self.etcd().put(&self.key(key), value),
        }
    }

    /// The key may consist of arbitrary bytes.
    pub(crate) fn put_bytes(&self, key: &[u8], there: bool) {
        use std::os::unix::ffi::OsStrExt;
        let key = std::ffi::OsStr::from_bytes(key);
        match self.folder() {
            Some(folder) => {
                let path = folder.join("subnets").join(key);
                if there {
                    std::fs::write(path, "{}").unwrap();
                } else {
                    std::fs::remove_file(path).unwrap();
                }
            }
            None => {
                let mut full = std::ffi::OsString::from(self.key(""));
                full.push(key);
                if there {
                    self.etcd().ctl_os(&["put".as_ref(), &full, "{}".as_ref()]);
                } else {
                    self.etcd().ctl_os(&["del".as_ref(), &full]);
                }
            }
        }
    }

    pub(crate) fn delete(&self, key: &str) {
        if let Store::Kube(cluster) = &self.store {
            return cluster.delete(key);
        }
        match self.folder() {
            Some(folder) => std::fs::remove_file(folder.join("subnets").join(key)).unwrap(),
            None => {
                self.etcd().ctl(&["del", &self.key(key)]);
            }
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<String> {
        if let Store::Kube(cluster) = &self.store {
            return cluster.get(key);
        }
        match self.folder() {
            Some(folder) => std::fs::read_to_string(folder.join("subnets").join(key)).ok(),
            None => {
                let text = self.etcd().ctl(&["get", "--print-value-only", &self.key(key)]);
                let text = text.trim_end_matches('\n').to_owned();
                (!text.is_empty()).then_some(text)
            }
        }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        if let Store::Kube(cluster) = &self.store {
            return cluster.keys();
        }
        match self.folder() {
            Some(folder) => std::fs::read_dir(folder.join("subnets"))
                .map(|files| {
                    files
                        .map(|file| file.unwrap().file_name().into_string().unwrap())
                        .filter(|name| !name.starts_with('.'))
                        .collect()
                })
                .unwrap_or_default(),
            None => self
                .etcd()
                .ctl(&["get", "--prefix", "--keys-only", &self.key("")])
                .lines()
                .filter_map(|line| line.strip_prefix(&self.key("")).map(str::to_owned))
                .collect(),
        }
    }

    /// The network of this case replaces 10.5.0.0/16 in the text.
    pub(crate) fn here(&self, text: &str) -> String {
        self.cluster().here(text)
    }

    /// The lease to which the key is attached; 0 if none.
    pub(crate) fn lease_of(&self, key: &str) -> i64 {
        if self.folder().is_some() {
            return 0;
        }
        let text = self.etcd().ctl(&["get", "-w", "json", &self.key(key)]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["kvs"][0]["lease"].as_i64().unwrap_or(0)
    }
}
