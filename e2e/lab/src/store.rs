//! The lease stores of a lab, and the daemons' arguments for them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::site::name::entries;
use crate::store::etcd_client::EtcdClient;

pub(crate) mod ca;
pub(crate) mod etcd;
pub(crate) mod etcd_client;

/// The daemons' default prefix.
pub(crate) const PREFIX: &str = "/coreos.com/network";
// The files of a directory are named as the keys of etcd are.
const CONFIG: &str = "config";
const SUBNETS: &str = "subnets";

/// A store, as a daemon and a test see it.
#[derive(Debug, Clone)]
pub struct Store {
    kind: Kind,
    /// Prefix of the keys in etcd. Daemons get no argument for the default one.
    prefix: String,
}

#[derive(Debug, Clone)]
enum Kind {
    Dir(PathBuf),
    Etcd(EtcdClient),
}

impl Store {
    /// Leases as files in a directory.
    pub fn dir(folder: &Path) -> Store {
        Store {
            kind: Kind::Dir(folder.to_owned()),
            prefix: PREFIX.to_owned(),
        }
    }

    /// Leases in etcd, below the default prefix.
    pub fn etcd(client: &EtcdClient) -> Store {
        Store {
            kind: Kind::Etcd(client.clone()),
            prefix: PREFIX.to_owned(),
        }
    }

    /// The same store with another prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Store {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Writes the network's configuration, the text of net-conf.json.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn configure(&self, net_conf: &str) -> Result<()> {
        match &self.kind {
            Kind::Dir(folder) => {
                std::fs::create_dir_all(folder.join(SUBNETS))?;
                // Daemons may be reading, and the documentation tells operators to rename.
                std::fs::write(folder.join(".config.new"), net_conf)?;
                std::fs::rename(folder.join(".config.new"), folder.join(CONFIG))
                    .context("writing the network's configuration")
            }
            Kind::Etcd(client) => client.put(&self.key(CONFIG), net_conf),
        }
    }

    /// The subnets' keys, without what precedes them, and values.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn subnets(&self) -> Result<Vec<(String, String)>> {
        match &self.kind {
            Kind::Dir(folder) => {
                let folder = folder.join(SUBNETS);
                let mut names: Vec<String> = entries(&folder)
                    .into_iter()
                    .filter(|name| !name.starts_with('.'))
                    .collect();
                names.sort();
                names
                    .into_iter()
                    .map(|name| Ok((name.clone(), std::fs::read_to_string(folder.join(&name))?)))
                    .collect()
            }
            Kind::Etcd(client) => {
                let prefix = self.key(&format!("{SUBNETS}/"));
                let found = client.get_prefix(&prefix)?.into_iter();
                Ok(found
                    .map(|entry| {
                        (
                            entry.key.trim_start_matches(&prefix).to_owned(),
                            entry.value,
                        )
                    })
                    .collect())
            }
        }
    }

    /// The full key of `config` or `subnets/…` in etcd.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// The daemons' arguments for this store.
    pub fn args(&self) -> Vec<String> {
        match &self.kind {
            Kind::Dir(folder) => vec![format!("--subnet-dir={}", folder.display())],
            Kind::Etcd(client) => {
                let mut args = client.daemon_args();
                if self.prefix != PREFIX {
                    args.push(format!("--etcd-prefix={}", self.prefix));
                }
                args
            }
        }
    }
}
