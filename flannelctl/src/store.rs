//! The store as an operator names it: the daemon's own flags and variables, opened, listed, looked at.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use subnet_lease::NetworkConfig;
use subnet_lease::dir::DirManager;
use subnet_lease::etcd::{EtcdManager, EtcdOptions};
use subnet_lease::manager::SubnetManager;
use subnet_lease::protocol::registry::{Entry, Listing};
use subnet_lease::protocol::view::Item;

/// What the daemon connects to where nothing is said.
const ENDPOINTS: &str = "http://127.0.0.1:4001,http://127.0.0.1:2379";
const PREFIX: &str = "/coreos.com/network";
/// How many questions are under way at a time.
const AT_ONCE: usize = 16;

/// Where the leases are: the flags and variables of flanneld.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Where the leases are")]
pub struct StoreArgs {
    /// etcd's client addresses, with commas between them [default: http://127.0.0.1:4001,http://127.0.0.1:2379].
    #[arg(long, value_name = "URL,…", env = "FLANNELD_ETCD_ENDPOINTS")]
    etcd_endpoints: Option<String>,
    /// Root of flannel's keys [default: /coreos.com/network].
    #[arg(long, value_name = "KEY", env = "FLANNELD_ETCD_PREFIX")]
    etcd_prefix: Option<String>,
    /// Certificate authority of an https etcd.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_CAFILE")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_CERTFILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Client key.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_KEYFILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// etcd user.
    #[arg(long, value_name = "NAME", env = "FLANNELD_ETCD_USERNAME", requires = "etcd_password")]
    etcd_username: Option<String>,
    /// Its password; the variable is safer, since `ps` does not show it.
    #[arg(long, value_name = "TEXT", env = "FLANNELD_ETCD_PASSWORD", hide_env_values = true, requires = "etcd_username")]
    etcd_password: Option<String>,
    /// The directory of leases, where they are not in etcd.
    #[arg(long, value_name = "DIR", env = "FLANNELD_SUBNET_DIR")]
    subnet_dir: Option<PathBuf>,
}

impl StoreArgs {
    /// Opens the store; nothing is connected or read yet.
    ///
    /// # Errors
    /// When a directory and etcd are both named.
    pub fn open(&self) -> Result<Store> {
        match &self.subnet_dir {
            Some(_) if self.etcd_endpoints.as_ref().is_some_and(|text| !text.is_empty()) => {
                bail!("--subnet-dir and --etcd-endpoints (or their variables) exclude each other: name the one that holds the leases")
            }
            Some(folder) if !folder.as_os_str().is_empty() => {
                Ok(Store { place: folder.join("subnets").display().to_string(), kind: Kind::Dir(Box::new(DirManager::new(folder.clone()))) })
            }
            _ => {
                let options = self.etcd();
                if options.endpoints.is_empty() {
                    bail!("--etcd-endpoints has no endpoint in it; it should look like http://10.0.0.1:2379");
                }
                let place = format!("{}/subnets/ of etcd at {}", options.prefix, options.endpoints.join(","));
                Ok(Store { place, kind: Kind::Etcd(Box::new(EtcdManager::new(options))) })
            }
        }
    }

    fn etcd(&self) -> EtcdOptions {
        let file = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let identity = file(&self.etcd_certfile).zip(file(&self.etcd_keyfile));
        let text = self.etcd_endpoints.as_deref().filter(|text| !text.is_empty()).unwrap_or(ENDPOINTS);
        let endpoints = text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| with_scheme(part, identity.is_some()));
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        EtcdOptions {
            endpoints: endpoints.collect(),
            prefix: cleaned(text(&self.etcd_prefix).as_deref().unwrap_or(PREFIX)),
            ca: file(&self.etcd_cafile),
            identity,
            user: text(&self.etcd_username).zip(text(&self.etcd_password)),
        }
    }
}

/// As flanneld reads it: without a scheme http, or https where a client certificate is given.
fn with_scheme(endpoint: &str, certificate: bool) -> String {
    if endpoint.contains("://") || endpoint.starts_with("unix:") {
        endpoint.to_owned()
    } else if certificate {
        format!("https://{endpoint}")
    } else {
        format!("http://{endpoint}")
    }
}

/// A prefix without doubled slashes and without one at its end.
fn cleaned(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
    match (prefix.starts_with('/'), parts.is_empty()) {
        (_, true) => String::new(),
        (true, false) => format!("/{}", parts.join("/")),
        (false, false) => parts.join("/"),
    }
}

/// A store that can be asked.
pub struct Store {
    place: String,
    kind: Kind,
}

enum Kind {
    Etcd(Box<EtcdManager>),
    Dir(Box<DirManager>),
}

/// What is known of a holder: when it reported last, and when the lease ends unless it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sign {
    /// How long ago the holder reported.
    pub heard: Option<Duration>,
    /// When the lease ends; none for a reservation.
    pub left: Option<Duration>,
}

impl Store {
    /// Where the leases are, for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether asking for a holder's last sign costs a request to a server.
    pub fn asks_a_server(&self) -> bool {
        matches!(self.kind, Kind::Etcd(_))
    }

    /// All keys.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn list(&self) -> Result<Listing> {
        let listing = match &self.kind {
            Kind::Etcd(manager) => manager.list().await,
            Kind::Dir(manager) => manager.list().await,
        };
        listing.with_context(|| format!("listing {}", self.place))
    }

    /// The network's configuration.
    ///
    /// # Errors
    /// It is missing, unreadable or invalid.
    pub async fn config(&self) -> Result<NetworkConfig> {
        Ok(match &self.kind {
            Kind::Etcd(manager) => manager.network_config().await,
            Kind::Dir(manager) => manager.network_config().await,
        }?)
    }

    /// The last sign of a key's holder.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn sign(&self, item: &Item) -> Result<Sign> {
        match &self.kind {
            Kind::Dir(manager) => {
                let heard = manager.heard(&item.entry.key).await;
                Ok(Sign { heard: heard.with_context(|| format!("asking after the holder of {}", item.subnets))?, left: None })
            }
            Kind::Etcd(manager) => {
                let time = manager.lease_time(item.pulse()).await.with_context(|| format!("asking after the lease of {}", item.subnets))?;
                let left = time.filter(|_| !item.reserved()).map(|time| time.left);
                Ok(Sign { heard: time.map(|time| time.heard), left })
            }
        }
    }

    /// The last signs of many holders, by key.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn signs(&self, items: &[Item]) -> Result<BTreeMap<String, Sign>> {
        use futures_util::stream::{StreamExt, TryStreamExt};
        let one = |item: &Item| {
            let item = item.clone();
            async move { self.sign(&item).await.map(|sign| (item.entry.key.clone(), sign)) }
        };
        let questions: Vec<_> = items.iter().map(one).collect();
        futures_util::stream::iter(questions).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Deletes a key unless it changed since it was listed; whether it did.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn release(&self, entry: &Entry) -> Result<bool> {
        let done = match &self.kind {
            Kind::Etcd(manager) => manager.release(entry).await,
            Kind::Dir(manager) => manager.release(entry).await,
        };
        done.with_context(|| format!("deleting {} below {}", entry.key, self.place))
    }
}

/// Runs a command that asks the store.
///
/// # Errors
/// Those of the command.
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    // The same provider as the daemon's; a second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_is_named_as_the_daemon_does() {
        let args = |endpoints: &str| StoreArgs { etcd_endpoints: Some(endpoints.to_owned()), ..StoreArgs::default() };
        assert_eq!(StoreArgs::default().etcd().endpoints, ["http://127.0.0.1:4001", "http://127.0.0.1:2379"]);
        assert_eq!(StoreArgs::default().etcd().prefix, "/coreos.com/network");
        assert_eq!(args("a:1, https://b:2,").etcd().endpoints, ["http://a:1", "https://b:2"]);
        let certificate = StoreArgs { etcd_certfile: Some("c".into()), etcd_keyfile: Some("k".into()), ..args("a:1") };
        assert_eq!(certificate.etcd().endpoints, ["https://a:1"]);
        assert!(args(" ,").open().is_err());
        assert!(StoreArgs { subnet_dir: Some("/leases".into()), ..args("a:1") }.open().is_err());
        assert_eq!(StoreArgs { subnet_dir: Some("/leases".into()), ..StoreArgs::default() }.open().unwrap().place(), "/leases/subnets");
    }

    #[test]
    fn prefixes_are_cleaned() {
        for (text, want) in [("/a/b/", "/a/b"), ("//a//b", "/a/b"), ("/", ""), ("a/", "a")] {
            assert_eq!(cleaned(text), want, "{text}");
        }
    }
}
