//! Keeps leases as files in a directory, without a server, for a laptop, a lab or a static set of nodes.
//!
//! The file `config` contains the network configuration. Each file `subnets/<key>` contains one lease, with the same key and JSON as in etcd. To
//! write one, flanneld locks the directory and replaces the file by a rename. Files whose names begin with a dot are not leases. Leases in a
//! directory never expire. The holder touches its file every minute to show that it is alive.

mod changes;
mod error;
mod files;
mod root;
mod worker;

use crate::config::NetworkConfig;
use crate::manager::{Counters, Error, Liveness};
use crate::protocol::drive::Registry;
use crate::protocol::following::Following;
use crate::protocol::keys::{KeyManager, KeyStore, Recent};
use crate::protocol::reading;
use crate::protocol::registry::{Answer, Entry, Listing, Notice, Request};
use crate::protocol::view::Item;
use crate::table::LeaseEvent;
use async_trait::async_trait;
use changes::Changes;
use error::DirError;
use files::{Files, Whole};
use futures_util::stream::{self, BoxStream, StreamExt};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use types::problem::ConfigPlace;
use types::{Detail, Problem, Subnets};
use worker::{TIMEOUT, Worker};

/// Interval at which flanneld reads the directory if inotify reports no change, e.g. on a network file system.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Interval at which flanneld checks the identity of the directory, because inotify does not report that it was replaced.
const PROBE: Duration = Duration::from_secs(2);
/// Delay before flanneld checks a missing directory or file again.
const RETRY: Duration = Duration::from_millis(500);

pub type DirManager = KeyManager<Directory>;

impl DirManager {
    /// Does not access the directory, which may still be missing.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        let files = Arc::new(Files::new(root.clone()));
        Self::on(Directory { root, files, worker: Worker::new(TIMEOUT), counters: Arc::default() })
    }
}

pub struct Directory {
    root: PathBuf,
    files: Arc<Files>,
    worker: Worker,
    counters: Arc<Counters>,
}

impl Directory {
    /// Also records whether the directory is available.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> Result<T, DirError> + Send + 'static,
    ) -> Result<T, Problem> {
        let files = self.files.clone();
        let done = async {
            self.worker
                .run(move || work(&files))
                .await
                .unwrap_or_else(|silence| Err(DirError::silent(&silence, &self.root)))
        };
        match self.counters.timed(done).await {
            Ok(done) => {
                self.counters.heard();
                Ok(done)
            }
            Err(DirError::Unavailable(why)) => {
                self.counters.set_unavailable(why.clone(), true);
                Err(why)
            }
            Err(DirError::Failed(why)) => Err(why),
        }
    }
}

#[async_trait]
impl Registry for Directory {
    async fn request(&self, request: Request) -> Result<Answer, Problem> {
        self.counters.call(match &request {
            Request::List => "list",
            Request::Txn { .. } => "txn",
            Request::KeepAlive { .. } => "touch",
            Request::Inherit { .. } => return Ok(Answer::Alive(false)),
            Request::LastSeen { .. } => "stat",
            Request::Grant => return Ok(Answer::Granted(0)),
            Request::Revoke { .. } => return Ok(Answer::Revoked),
        });
        self.ask(move |files| match request {
            Request::List => files.list(None).map(|whole| Answer::Listing(whole.listing)),
            Request::LastSeen { key, .. } => files.last_seen(&key).map(Answer::LastSeen),
            Request::Txn { compare, write, key } => files.txn(&compare, &write, &key),
            Request::KeepAlive { key, .. } => files.touch(&key).map(Answer::Alive),
            Request::Grant => Ok(Answer::Granted(0)),
            Request::Inherit { .. } => Ok(Answer::Alive(false)),
            Request::Revoke { .. } => Ok(Answer::Revoked),
        })
        .await
    }
}

#[async_trait]
impl KeyStore for Directory {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        let text = self.ask(Files::config).await.map_err(Error::Unavailable)?;
        NetworkConfig::parse(&String::from_utf8_lossy(&text)).map_err(|why| {
            let path = self.root.join("config");
            let text = format!("{}: {why}", path.display());
            let detail = Detail::ConfigInvalid { place: Some(ConfigPlace::File(path)) };
            Error::Unavailable(Problem { text, detail, ..why })
        })
    }

    /// Ignores `recent` and begins with a new list of the leases. The inotify watch must be set up before the list is read.
    fn watch<'a>(&'a self, recent: &'a Recent) -> BoxStream<'a, LeaseEvent> {
        let next = |(mut peers, recent): (Peers<'a>, Option<&'a Recent>)| async move {
            if let Some(recent) = recent {
                // Free the recent listing: no other code needs it, and it may be long.
                drop(recent.take().await);
            }
            Some((peers.next().await, (peers, None)))
        };
        stream::unfold((Peers::of(self), Some(recent)), next).boxed()
    }

    /// Sends a notice after each change of the key's file. The receiver then reads the file.
    async fn watch_key(&self, key: &str, modified: i64, notices: &mpsc::UnboundedSender<Notice>) {
        let mut changes = Changes::new();
        let mut known = Some(modified);
        loop {
            let (key, watch) = (key.to_owned(), changes.watch());
            let look = self.ask(move |files| files.mark_of(&key, &watch)).await;
            // The state of the file is unknown while the directory is unavailable.
            let Ok((present, watched)) = look else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            if known != present {
                let _ = notices.send(Notice::Reconnected);
            }
            known = present;
            changes.within(if watched { POLL_INTERVAL } else { RETRY }).await;
        }
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn place(&self) -> String {
        self.root.join("subnets").display().to_string()
    }

    async fn liveness(&self, item: &Item) -> Result<Liveness, Problem> {
        let key = item.entry.key.clone();
        Ok(Liveness { heard: self.ask(move |files| files.last_seen(&key)).await?, left: None })
    }
}

struct Peers<'a> {
    directory: &'a Directory,
    known: Option<BTreeMap<String, Entry>>,
    flawed: BTreeMap<String, Problem>,
    changes: Changes,
    watched: bool,
    listed: Instant,
    following: Following,
}

impl<'a> Peers<'a> {
    fn of(directory: &'a Directory) -> Self {
        Self {
            directory,
            known: None,
            flawed: BTreeMap::new(),
            changes: Changes::new(),
            watched: false,
            listed: Instant::now(),
            following: Following::new(directory.counters.clone()),
        }
    }

    async fn next(&mut self) -> LeaseEvent {
        loop {
            if let Some(event) = self.following.next() {
                return event;
            }
            let changed = if self.following.is_failing() {
                tokio::time::sleep(RETRY).await;
                true
            } else if self.known.is_some() {
                self.changes.within(if self.watched { PROBE } else { RETRY }).await
            } else {
                true
            };
            let looked = if changed || !self.watched || self.listed.elapsed() >= POLL_INTERVAL {
                let watch = self.changes.watch();
                self.directory
                    .ask(move |files| files.list(Some(&watch)))
                    .await
                    .map(|whole| self.compare(whole))
            } else {
                self.directory.ask(Files::present).await
            };
            if let Err(why) = looked {
                self.following.interrupted(Some(&why));
            }
        }
    }

    fn compare(&mut self, whole: Whole) {
        let Whole { listing, flawed, watched } = whole;
        // Only a complete read shows that the directory is available. Reading a single file does not.
        self.directory.counters.set_available();
        self.watched = watched;
        self.listed = Instant::now();
        self.following.resumed();
        let directory = self.directory;
        let counters = &directory.counters;
        let present: BTreeMap<String, Entry> =
            listing.entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let readable = || present.values().filter(|entry| !flawed.contains_key(&entry.key));
        match &self.known {
            None => {
                let listing =
                    Listing { revision: listing.revision, entries: readable().cloned().collect() };
                self.following.listed(listing, unreadable(counters, &flawed, |_, _| true));
            }
            Some(known) => {
                // A key whose file cannot be read still exists, so its last content stays in force.
                let unreadable: Vec<Subnets> =
                    unreadable(counters, &flawed, |key, why| self.flawed.get(key) != Some(why))
                        .collect();
                for key in known.keys().filter(|key| !present.contains_key(*key)) {
                    self.following.deleted(key);
                }
                let same = |entry: &Entry| {
                    !self.flawed.contains_key(&entry.key)
                        && known
                            .get(&entry.key)
                            .is_some_and(|known| known.modified == entry.modified)
                };
                for entry in readable().filter(|entry| !same(entry)) {
                    self.following.written(entry.clone());
                }
                unreadable.into_iter().for_each(|subnets| self.following.unreadable(subnets));
            }
        }
        self.known = Some(present);
        self.flawed = flawed;
    }
}

/// Subnets of the keys whose files are unreadable for a new reason.
fn unreadable(
    counters: &Counters,
    flawed: &BTreeMap<String, Problem>,
    is_news: impl Fn(&String, &Problem) -> bool,
) -> impl Iterator<Item = Subnets> {
    flawed
        .iter()
        .filter(move |(key, why)| is_news(key, why))
        .filter_map(|(key, why)| reading::unreadable(counters, key, why))
}
