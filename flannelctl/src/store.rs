//! The store of leases that the daemon's flags and environment variables select.

use std::collections::BTreeMap;
use std::time::Duration;
use terminal::out;

use anyhow::{Context, Result, anyhow};
use options::StoreFlags;
use subnet_lease::entry::{Entry, Listing};
use subnet_lease::manager::{LeaseStore, Liveness};
use subnet_lease::protocol::view::Item;
use subnet_lease::{NetworkConfig, wire};
use types::{Problem, Subnets};

/// For the first response of a store.
const TIMEOUT: Duration = Duration::from_millis(2500);
/// Maximum number of requests at the same time.
const MAX_REQUESTS: usize = 16;

/// Does not connect or read yet. An error lists every mistake in the flags, as flanneld does.
pub(crate) fn open(flags: &StoreFlags) -> Result<Store> {
    let (store, warnings) =
        flags.read().map_err(|mistakes| anyhow!(lines(&mistakes, "\nflannelctl: ")))?;
    for warning in warnings {
        out::complain(warning);
    }
    let user_agent = format!("flannelctl/{}", env!("CARGO_PKG_VERSION"));
    Ok(Store(store.look(user_agent)))
}

fn lines(mistakes: &[Problem], between: &str) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

pub(crate) struct Store(Box<dyn LeaseStore>);

impl Store {
    /// For messages: where the leases are.
    pub(crate) fn place(&self) -> String {
        self.0.place()
    }

    /// Whether leases are part of Node objects and end with these.
    pub(crate) fn is_of_nodes(&self) -> bool {
        self.0.nature().of_nodes
    }

    /// Whether the liveness of each holder takes a request to a server of its own.
    pub(crate) fn asks_a_server(&self) -> bool {
        self.0.nature().asks_a_server
    }

    /// Waits for the first response of the store, which may be an error.
    pub(crate) async fn reach(&self) -> Result<()> {
        match tokio::time::timeout(TIMEOUT, self.config()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(anyhow!(
                "{} did not respond within {TIMEOUT:?}: check the address, and that the store runs and is reachable",
                self.place()
            )),
        }
    }

    pub(crate) async fn list(&self) -> Result<Listing> {
        self.0.list().await.with_context(|| format!("cannot list {}", self.place()))
    }

    pub(crate) async fn config(&self) -> Result<NetworkConfig> {
        Ok(self.0.config().await?)
    }

    /// When a key's holder was last seen, and when its lease ends.
    pub(crate) async fn sign(&self, item: &Item) -> Result<Liveness> {
        let failed = || match self.asks_a_server() {
            true => format!("cannot read the remaining time of the lease of {}", item.subnets),
            false => {
                format!("cannot read the time when the holder of {} was last seen", item.subnets)
            }
        };
        self.0.liveness(&item.entry).await.with_context(failed)
    }

    /// [`Store::sign`] for many leases, by key.
    pub(crate) async fn signs(&self, items: &[Item]) -> Result<BTreeMap<String, Liveness>> {
        use futures_util::stream::{StreamExt, TryStreamExt};
        let one = |item: &Item| {
            let item = item.clone();
            async move { self.sign(&item).await.map(|sign| (item.entry.key.clone(), sign)) }
        };
        let questions: Vec<_> = items.iter().map(one).collect();
        futures_util::stream::iter(questions).buffer_unordered(MAX_REQUESTS).try_collect().await
    }

    /// Deletes a key, unless it has changed since it was listed: then false.
    pub(crate) async fn release(&self, entry: &Entry) -> Result<bool> {
        self.0
            .release(entry)
            .await
            .with_context(|| format!("cannot delete {} below {}", entry.key, self.place()))
    }

    /// Writes a key that never expires. It replaces `present`, unless another program has changed that: then
    /// false.
    pub(crate) async fn reserve(
        &self,
        subnets: &Subnets,
        value: String,
        present: Option<&Entry>,
    ) -> Result<bool> {
        let done = self.0.reserve(subnets, value, present).await;
        done.with_context(|| {
            format!("cannot write {} below {}", wire::render_key(subnets), self.place())
        })
    }
}

/// Runs a command that accesses the store or another server.
pub(crate) fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    // The daemon uses the same provider. A second call has no effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, FromArgMatches, Parser};
    use options::{Environment, Invocation, Store as Where};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        store: StoreFlags,
    }

    fn parse(args: &[&str], environment: &Environment) -> Result<Cli, clap::Error> {
        let words = ["flannelctl"].iter().chain(args);
        options::apply_variables(options::adapt_flags(Cli::command()), environment)
            .try_get_matches_from(words)
            .and_then(|matches| Cli::from_arg_matches(&matches))
    }

    fn read(args: &[&str], environment: &Environment) -> Result<(Where, Vec<Problem>)> {
        parse(args, environment)?.store.read().map_err(|mistakes| anyhow!(lines(&mistakes, "\n")))
    }

    /// flannelctl and flanneld select the same store with the same flags.
    #[test]
    fn store_flags_are_read_as_the_daemon_reads_them() {
        let all = [
            "--etcd-cafile=/a",
            "--etcd-certfile=/c",
            "--etcd-keyfile=/k",
            "--etcd-username=u",
            "--etcd-password=p",
        ];
        let https = [&["--etcd-endpoints=a:1, https://b:2,"][..], &all].concat();
        let set = |name: &str| match name {
            "FLANNELD_ETCD_PREFIX" => Some("/env".into()),
            "FLANNELD_SUBNET_DIR" | "FLANNELD_ETCD_USERNAME" => Some("".into()),
            _ => None,
        };
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
            for environment in [&set as &Environment, &|_| None] {
                let want = options::read(args.iter().map(Into::into), environment, &[]);
                match (read(args, environment), want) {
                    (Ok(have), Invocation::Run(want)) => {
                        assert_eq!(
                            format!("{have:?}"),
                            format!("{:?}", (&want.store, &want.warnings)),
                            "{args:?}"
                        );
                    }
                    (Err(have), Invocation::Mistakes(want)) => {
                        assert_eq!(format!("{have:#}"), lines(&want, "\n"), "{args:?}");
                    }
                    (have, want) => panic!("{args:?}: {have:?}, {want:?}"),
                }
            }
        }
        let cli = parse(&["--subnet-dir=/leases"], &|_| None).unwrap();
        assert_eq!(open(&cli.store).unwrap().place(), "/leases/subnets");
    }

    /// flanneld needs a Node for `--kube-subnet-mgr`, so the programs are not compared.
    #[test]
    fn switch_needs_no_value() {
        let url = "--kube-api-url=http://a:1";
        for (args, kube) in [
            (&["--kube-subnet-mgr", url][..], true),
            (&["--kube-subnet-mgr=true", url], true),
            (&["--kube-subnet-mgr=false", url], false),
            (&["--kube-subnet-mgr", url, "--etcd-prefix=/a"], true),
        ] {
            let (place, _) = read(args, &|_| None).unwrap();
            assert_eq!(matches!(place, Where::Kube(_)), kube, "{args:?}");
        }
    }

    #[test]
    fn password_is_never_printed() {
        let environment = |name: &str| (name == "FLANNELD_ETCD_PASSWORD").then(|| "s3cret".into());
        for args in [
            &["--etcd-endpoints=http://user:s3cret@a:1"][..],
            &["--etcd-endpoints=http://user:s3c,ret@a:1"],
            &["--etcd-password=s3cret"],
            &["--etcd-passwort=s3cret"],
            &[],
        ] {
            let error = format!("{:#}", read(args, &environment).unwrap_err());
            assert!(!error.contains("s3c"), "{error}");
        }
        let cli = parse(&["--etcd-endpoints=http://u:s3cret@a"], &environment).unwrap();
        assert!(!format!("{cli:?}").contains("s3cret"));
    }
}
