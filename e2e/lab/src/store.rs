//! The lease stores of a lab, and the daemon arguments for them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::site::name::folder_entries;
use crate::store::etcd_client::EtcdClient;

pub(crate) mod ca;
pub(crate) mod etcd;
pub(crate) mod etcd_client;

/// The daemon's default prefix of keys in etcd.
pub(crate) const PREFIX: &str = "/coreos.com/network";
// Files in a directory have the same names as keys in etcd.
const CONFIG: &str = "config";
const SUBNETS: &str = "subnets";

#[derive(Debug, Clone)]
pub struct Store {
    kind: Kind,
    /// Of the keys in etcd. The default one needs no daemon argument.
    prefix: String,
}

#[derive(Debug, Clone)]
enum Kind {
    Dir(PathBuf),
    Etcd(EtcdClient),
}

impl Store {
    /// Leases are files in a directory.
    pub fn dir(folder: &Path) -> Store {
        Store { kind: Kind::Dir(folder.to_owned()), prefix: PREFIX.to_owned() }
    }

    /// The keys are below the default prefix.
    pub fn etcd(client: &EtcdClient) -> Store {
        Store { kind: Kind::Etcd(client.clone()), prefix: PREFIX.to_owned() }
    }

    /// The keys in etcd begin with it.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Store {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// The text of net-conf.json.
    pub fn configure(&self, net_conf: &str) -> Result<()> {
        match &self.kind {
            Kind::Dir(folder) => {
                std::fs::create_dir_all(folder.join(SUBNETS))?;
                // Daemons may be reading the file; the documentation also tells operators to rename it into place.
                std::fs::write(folder.join(".config.new"), net_conf)?;
                std::fs::rename(folder.join(".config.new"), folder.join(CONFIG))
                    .context("writing the network's configuration")
            }
            Kind::Etcd(client) => client.put(&self.key(CONFIG), net_conf),
        }
    }

    /// Writes as an operator does: `lease` is like `10.5.3.0-24`.
    pub fn put(&self, lease: &str, value: &str) -> Result<()> {
        match &self.kind {
            Kind::Dir(folder) => {
                let (new, file) = (folder.join(".lease.new"), folder.join(SUBNETS).join(lease));
                std::fs::write(&new, value)?;
                std::fs::rename(new, file).with_context(|| format!("writing {lease}"))
            }
            Kind::Etcd(client) => client.put(&self.key(&format!("{SUBNETS}/{lease}")), value),
        }
    }

    /// Deletes as an operator does. Fails if the store does not have the lease.
    pub fn delete(&self, lease: &str) -> Result<()> {
        match &self.kind {
            Kind::Dir(folder) => std::fs::remove_file(folder.join(SUBNETS).join(lease))
                .with_context(|| format!("deleting {lease}")),
            Kind::Etcd(client) => {
                let existed = client.del(&self.key(&format!("{SUBNETS}/{lease}")))?;
                ensure!(existed, "etcd has no lease {lease} to delete");
                Ok(())
            }
        }
    }

    /// Keys (without their prefix) and values.
    pub fn lease_names_and_values(&self) -> Result<Vec<(String, String)>> {
        match &self.kind {
            Kind::Dir(folder) => {
                let folder = folder.join(SUBNETS);
                let mut names: Vec<String> = folder_entries(&folder)
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
                    .map(|entry| (entry.key.trim_start_matches(&prefix).to_owned(), entry.value))
                    .collect())
            }
        }
    }

    /// The full key of `config` or `subnets/…` in etcd.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// The daemon arguments for this store.
    pub fn daemon_args(&self) -> Vec<String> {
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
