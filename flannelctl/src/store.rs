//! Access to the store that the daemon's flags and variables name.

use crate::out;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use options::{Store as Where, StoreFlags};
use subnet_lease::dir::DirManager;
use subnet_lease::etcd::EtcdManager;
use subnet_lease::kube::{KubeOptions, Listed, Tool};
use subnet_lease::manager::{Error, SubnetManager};
use subnet_lease::protocol::registry::{Entry, Listing, Unanswered};
use subnet_lease::protocol::view::Item;
use subnet_lease::{LeaseAttrs, NetworkConfig, NodeId, Subnets, wire};

/// How long a store may be silent before a command gives up.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Number of concurrent requests.
const AT_ONCE: usize = 16;

/// Opens the store that the flags name. Connects to nothing and reads nothing yet.
///
/// # Errors
/// Lists every mistake, as flanneld does.
pub fn open(flags: &StoreFlags) -> Result<Store> {
    let (store, warnings) = flags.read().map_err(|mistakes| anyhow!(mistakes.join("\nflannelctl: ")))?;
    for warning in warnings {
        out::complain(warning);
    }
    Ok(match store {
        Where::Dir(folder) => Store { place: folder.join("subnets").display().to_string(), kind: Kind::Dir(Box::new(DirManager::new(folder))) },
        Where::Kube(kube) => Store {
            place: "the Nodes of Kubernetes".to_owned(),
            kind: Kind::Kube(Box::new(Tool::new(KubeOptions { user_agent: format!("flannelctl/{}", env!("CARGO_PKG_VERSION")), ..*kube }))),
        },
        Where::Etcd(etcd) => {
            let options = etcd.options();
            let place = format!("{}/subnets/ of etcd at {}", options.prefix, options.endpoints.join(","));
            Store { place, kind: Kind::Etcd(Box::new(EtcdManager::new(options))) }
        }
    })
}

/// An open store.
pub struct Store {
    place: String,
    kind: Kind,
}

enum Kind {
    Etcd(Box<EtcdManager>),
    Dir(Box<DirManager>),
    Kube(Box<Tool>),
}

/// When a holder was last seen, and when its lease expires unless renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sign {
    /// How long ago the holder was last seen.
    pub heard: Option<Duration>,
    /// Time until the lease expires; `None` for a reservation.
    pub left: Option<Duration>,
}

impl Store {
    /// Describes where the leases are.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether leases end with the Nodes that they are written on.
    pub fn is_of_nodes(&self) -> bool {
        matches!(self.kind, Kind::Kube(_))
    }

    /// Whether reading a holder's last sign of life takes a request to a server.
    pub fn asks_a_server(&self) -> bool {
        matches!(self.kind, Kind::Etcd(_))
    }

    /// Waits for the first answer.
    ///
    /// # Errors
    /// There is none in time. A refusal is an answer.
    pub async fn reach(&self) -> Result<()> {
        match tokio::time::timeout(PATIENCE, self.config()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(anyhow!("{} does not answer within {PATIENCE:?}: check the address, and that the store runs and is reachable", self.place)),
        }
    }

    /// All keys.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn list(&self) -> Result<Listing> {
        let listing = match &self.kind {
            Kind::Etcd(manager) => manager.list().await,
            Kind::Dir(manager) => manager.list().await,
            Kind::Kube(tool) => {
                tool.list().await.map(|nodes| Listing { revision: 0, entries: nodes.iter().map(entry).collect() }).map_err(Unanswered)
            }
        };
        listing.with_context(|| format!("cannot list {}", self.place))
    }

    /// The network's configuration.
    ///
    /// # Errors
    /// It is missing, unreadable or invalid.
    pub async fn config(&self) -> Result<NetworkConfig> {
        Ok(match &self.kind {
            Kind::Etcd(manager) => manager.network_config().await,
            Kind::Dir(manager) => manager.network_config().await,
            Kind::Kube(tool) => tool.config().await.map_err(Error::Unavailable),
        }?)
    }

    /// The last sign of life of a key's holder.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn sign(&self, item: &Item) -> Result<Sign> {
        match &self.kind {
            // Whether a Node is alive is its kubelet's to tell.
            Kind::Kube(_) => Ok(Sign::default()),
            Kind::Dir(manager) => {
                let heard = manager.last_seen(&item.entry.key).await;
                Ok(Sign { heard: heard.with_context(|| format!("cannot read when the holder of {} was last seen", item.subnets))?, left: None })
            }
            Kind::Etcd(manager) => {
                let time = manager
                    .lease_time(item.keepalive())
                    .await
                    .with_context(|| format!("cannot read the remaining time of the lease of {}", item.subnets))?;
                let left = time.filter(|_| !item.reserved()).map(|time| time.left);
                Ok(Sign { heard: time.map(|time| time.last_seen), left })
            }
        }
    }

    /// The last signs of life of many holders, by key.
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

    /// Deletes a key unless it has changed since it was listed. Returns whether it was deleted.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn release(&self, entry: &Entry) -> Result<bool> {
        let done = match &self.kind {
            Kind::Etcd(manager) => manager.release(entry).await,
            Kind::Dir(manager) => manager.release(entry).await,
            Kind::Kube(tool) => {
                let item = Item::of(entry.clone());
                let node = item.as_ref().and_then(Item::node).cloned().with_context(|| format!("{} names no Node", entry.key))?;
                tool.withdraw(&node.name, &node.instance).await.map(|()| true).map_err(Unanswered)
            }
        };
        done.with_context(|| format!("cannot delete {} below {}", entry.key, self.place))
    }
}

impl Store {
    /// Writes a key that never expires: a new one, or in the place of `present` unless that has changed. Returns whether it was written.
    ///
    /// # Errors
    /// The store does not answer, or has no keys of its own.
    pub async fn reserve(&self, subnets: &Subnets, value: String, present: Option<&Entry>) -> Result<bool> {
        let done = match &self.kind {
            Kind::Etcd(manager) => manager.reserve(subnets, value, present).await,
            Kind::Dir(manager) => manager.reserve(subnets, value, present).await,
            Kind::Kube(_) => bail!("on Kubernetes a node's subnet is its Node's podCIDR: nothing can be reserved"),
        };
        done.with_context(|| format!("cannot write {} below {}", wire::render_key(subnets), self.place))
    }
}

/// A Node as a key of the other stores, so that it is shown like one. A Node without a usable podCIDR names no subnet.
fn entry(listed: &Listed) -> Entry {
    let node = &listed.node;
    // The uid keeps a Node apart from one that is created again under its name.
    let id = NodeId { id: node.name.clone(), name: node.name.clone(), instance: node.uid.clone(), ..NodeId::default() };
    let attrs = listed.attrs.clone().ok().filter(|_| listed.managed).unwrap_or_default();
    let value = wire::render_value(&LeaseAttrs { node: Some(id), ..attrs });
    let key = match &node.subnets {
        Ok(Some(subnets)) => match &listed.attrs {
            Err(why) if listed.managed => format!("{}: {subnets}: {why}", node.name),
            _ => wire::render_key(subnets),
        },
        Ok(None) => format!("{}: no podCIDR is assigned", node.name),
        Err(why) => format!("{}: {why}", node.name),
    };
    Entry { key, value: value.into_bytes(), created: node.created, modified: 0, lease: 0 }
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
    use clap::{CommandFactory, FromArgMatches, Parser};
    use options::Invocation;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        store: StoreFlags,
    }

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        let words = ["flannelctl"].iter().chain(args);
        options::environment(Cli::command()).try_get_matches_from(words).and_then(|matches| Cli::from_arg_matches(&matches))
    }

    fn read(args: &[&str]) -> Result<(Where, Vec<String>)> {
        parse(args)?.store.read().map_err(|mistakes| anyhow!(mistakes.join("\n")))
    }

    /// Both programs take one command line for one store.
    #[test]
    fn the_store_is_named_as_the_daemon_does() {
        let all = ["--etcd-cafile=/a", "--etcd-certfile=/c", "--etcd-keyfile=/k", "--etcd-username=u", "--etcd-password=p"];
        let https = [&["--etcd-endpoints=a:1, https://b:2,"][..], &all].concat();
        let unset: Vec<(String, Option<&str>)> =
            Cli::command().get_arguments().filter_map(clap::Arg::get_env).map(|name| (name.to_string_lossy().into_owned(), None)).collect();
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
                let set = environment.iter().map(|(name, text)| ((*name).to_owned(), Some(*text)));
                let (have, want) = temp_env::with_vars(unset.iter().cloned().chain(set).collect::<Vec<_>>(), || {
                    (read(args), options::read(args.iter().map(Into::into), &[]))
                });
                match (have, want) {
                    (Ok(have), Invocation::Run(want)) => {
                        assert_eq!(format!("{have:?}"), format!("{:?}", (&want.store, &want.warnings)), "{args:?}");
                    }
                    (Err(have), Invocation::Mistakes(want)) => assert_eq!(format!("{have:#}"), want.join("\n"), "{args:?}"),
                    (have, want) => panic!("{args:?}: {have:?}, {want:?}"),
                }
            }
        }
        let place = |args: &[&str]| open(&parse(args).unwrap().store).unwrap().place().to_owned();
        assert_eq!(temp_env::with_vars(unset, || place(&["--subnet-dir=/leases"])), "/leases/subnets");
    }

    #[test]
    fn a_password_is_never_printed() {
        for args in [
            &["--etcd-endpoints=http://user:s3cret@a:1"][..],
            &["--etcd-endpoints=http://user:s3c,ret@a:1"],
            &["--etcd-password=s3cret"],
            &["--etcd-passwort=s3cret"],
        ] {
            let told = format!("{:#}", read(args).unwrap_err());
            assert!(!told.contains("s3c"), "{told}");
        }
        let cli = parse(&["--etcd-password=s3cret", "--etcd-endpoints=http://u:s3cret@a"]).unwrap();
        assert!(!format!("{cli:?}").contains("s3cret"));
        let help = temp_env::with_var("FLANNELD_ETCD_PASSWORD", Some("s3cret"), || parse(&["--help"]).unwrap_err().to_string());
        assert!(help.contains("FLANNELD_ETCD_PASSWORD") && !help.contains("s3cret"), "{help}");
    }
}
