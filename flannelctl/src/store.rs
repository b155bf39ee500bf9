//! The store as an operator names it: the daemon's own flags and variables, opened, listed, looked at.

use crate::out;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use flanneld::cli::{Secret, Store as Where};
use subnet_lease::NetworkConfig;
use subnet_lease::dir::DirManager;
use subnet_lease::etcd::EtcdManager;
use subnet_lease::manager::SubnetManager;
use subnet_lease::protocol::registry::{Entry, Listing};
use subnet_lease::protocol::view::Item;

/// How many questions are under way at a time.
const AT_ONCE: usize = 16;

/// Where the leases are: flanneld's flags and variables, read by its own rules.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Where the leases are (flags and variables as flanneld's)")]
pub struct StoreArgs {
    /// etcd's client addresses, with commas between them [default: http://127.0.0.1:4001,http://127.0.0.1:2379]
    /// [env: FLANNELD_ETCD_ENDPOINTS].
    #[arg(long, value_name = "URL,…", value_parser = secret)]
    etcd_endpoints: Option<Secret>,
    /// Root of flannel's keys [default: /coreos.com/network] [env: FLANNELD_ETCD_PREFIX].
    #[arg(long, value_name = "KEY")]
    etcd_prefix: Option<String>,
    /// Certificate authority of an https etcd [env: FLANNELD_ETCD_CAFILE].
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<String>,
    /// Client certificate [env: FLANNELD_ETCD_CERTFILE].
    #[arg(long, value_name = "FILE")]
    etcd_certfile: Option<String>,
    /// Client key [env: FLANNELD_ETCD_KEYFILE].
    #[arg(long, value_name = "FILE")]
    etcd_keyfile: Option<String>,
    /// etcd user [env: FLANNELD_ETCD_USERNAME].
    #[arg(long, value_name = "NAME")]
    etcd_username: Option<String>,
    /// Its password; the variable is safer, since `ps` does not show it [env: FLANNELD_ETCD_PASSWORD].
    #[arg(long, value_name = "TEXT", value_parser = secret)]
    etcd_password: Option<Secret>,
    /// The directory of leases, where they are not in etcd [env: FLANNELD_SUBNET_DIR].
    #[arg(long, value_name = "DIR")]
    subnet_dir: Option<String>,
}

/// Nothing that may hold a password is ever printed.
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text.to_owned()))
}

impl StoreArgs {
    /// Opens the store; nothing is connected or read yet.
    ///
    /// # Errors
    /// Every mistake, as flanneld tells it.
    pub fn open(&self) -> Result<Store> {
        let (store, warnings) = self.read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))?;
        for warning in warnings {
            out::complain(warning);
        }
        Ok(match store {
            Where::Dir(folder) => Store { place: folder.join("subnets").display().to_string(), kind: Kind::Dir(Box::new(DirManager::new(folder))) },
            Where::Etcd(etcd) => {
                let options = etcd.options();
                let place = format!("{}/subnets/ of etcd at {}", options.prefix, options.endpoints.join(","));
                Store { place, kind: Kind::Etcd(Box::new(EtcdManager::new(options))) }
            }
        })
    }

    fn read(&self, variable: impl Fn(&str) -> Option<String>) -> Result<(Where, Vec<String>)> {
        flanneld::cli::store(self.flags(), variable).map_err(|mistakes| anyhow!(mistakes.join("\nflannelctl: ")))
    }

    /// The flags that were given, as flanneld takes them.
    fn flags(&self) -> Vec<OsString> {
        let texts = [
            ("etcd-endpoints", self.etcd_endpoints.as_ref().map(Secret::reveal)),
            ("etcd-prefix", self.etcd_prefix.as_deref()),
            ("etcd-cafile", self.etcd_cafile.as_deref()),
            ("etcd-certfile", self.etcd_certfile.as_deref()),
            ("etcd-keyfile", self.etcd_keyfile.as_deref()),
            ("etcd-username", self.etcd_username.as_deref()),
            ("etcd-password", self.etcd_password.as_ref().map(Secret::reveal)),
            ("subnet-dir", self.subnet_dir.as_deref()),
        ];
        texts.into_iter().filter_map(|(name, text)| Some(format!("--{name}={}", text?).into())).collect()
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
                let heard = manager.last_seen(&item.entry.key).await;
                Ok(Sign { heard: heard.with_context(|| format!("asking after the holder of {}", item.subnets))?, left: None })
            }
            Kind::Etcd(manager) => {
                let time = manager.lease_time(item.keepalive()).await.with_context(|| format!("asking after the lease of {}", item.subnets))?;
                let left = time.filter(|_| !item.reserved()).map(|time| time.left);
                Ok(Sign { heard: time.map(|time| time.last_seen), left })
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
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        store: StoreArgs,
    }

    fn read(args: &[&str], environment: &[(&str, &str)]) -> Result<(Where, Vec<String>)> {
        let cli = Cli::try_parse_from(["flannelctl"].iter().chain(args))?;
        cli.store.read(|name| environment.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned()))
    }

    /// Both programs take one command line for one store.
    #[test]
    fn the_store_is_named_as_the_daemon_does() {
        let all = ["--etcd-cafile=/a", "--etcd-certfile=/c", "--etcd-keyfile=/k", "--etcd-username=u", "--etcd-password=p"];
        let https = [&["--etcd-endpoints=a:1, https://b:2,"][..], &all].concat();
        let environment = [("FLANNELD_ETCD_PREFIX", "/env"), ("FLANNELD_SUBNET_DIR", ""), ("FLANNELD_ETCD_USERNAME", "")];
        for args in [
            &[][..],
            &https,
            &["--etcd-prefix="],
            &["--etcd-prefix=/"],
            &["--etcd-prefix=/a/../b/"],
            &["--subnet-dir="],
            &["--subnet-dir=", "--etcd-endpoints=a:1"],
            &["--subnet-dir=/leases"],
            &["--subnet-dir=/leases", "--etcd-endpoints=a:1"],
            &["--etcd-endpoints="],
            &["--etcd-endpoints= ,"],
            &["--etcd-endpoints=http://a:1", "--etcd-cafile=/a"],
            &["--etcd-certfile=/c"],
            &["--etcd-username=u"],
        ] {
            for environment in [&environment[..], &[]] {
                let variable = |name: &str| environment.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned());
                let want = flanneld::cli::store(args.iter().map(OsString::from), variable);
                match (read(args, environment), want) {
                    (Ok(have), Ok(want)) => assert_eq!(format!("{have:?}"), format!("{want:?}"), "{args:?}"),
                    (Err(have), Err(want)) => assert_eq!(format!("{have:#}"), want.join("\nflannelctl: "), "{args:?}"),
                    (have, want) => panic!("{args:?}: {have:?}, {want:?}"),
                }
            }
        }
        let place = |args: &[&str]| Cli::try_parse_from(["flannelctl"].iter().chain(args)).unwrap().store.open().unwrap().place().to_owned();
        assert_eq!(place(&["--subnet-dir=/leases"]), "/leases/subnets");
    }

    #[test]
    fn a_password_is_never_printed() {
        for args in [
            &["--etcd-endpoints=http://user:s3cret@a:1"][..],
            &["--etcd-endpoints=http://user:s3c,ret@a:1"],
            &["--etcd-password=s3cret"],
            &["--etcd-passwort=s3cret"],
        ] {
            let told = format!("{:#}", read(args, &[]).unwrap_err());
            assert!(!told.contains("s3c"), "{told}");
        }
        let cli = Cli::try_parse_from(["flannelctl", "--etcd-password=s3cret", "--etcd-endpoints=http://u:s3cret@a"]).unwrap();
        assert!(!format!("{cli:?}").contains("s3cret"));
    }
}
