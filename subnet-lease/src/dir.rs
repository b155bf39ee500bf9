//! Leases as files in a directory: the embedded default for a laptop, a lab or a static fleet.
//!
//! `config` is the network configuration, `subnets/<key>` a lease with the same key and JSON as in etcd. Files appear by
//! rename; every change is made under a lock; names that begin with a dot are nobody's lease. A lease never expires:
//! its holder touches its file every minute to show that it lives.

mod changes;
mod files;
mod root;
mod worker;

use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs};
use crate::manager::{Claim, Counters, Error, Held, Lost, SubnetManager};
use crate::protocol::acquire::{Tenure, acquire, stored};
use crate::protocol::coroutine::Coroutine;
use crate::protocol::drive::{Registry, drive, forward};
use crate::protocol::hold::hold;
use crate::protocol::registry::{Answer, Entry, Listing, Notice, Request, Unanswered};
use crate::table::LeaseEvent;
use crate::{Subnets, reading};
use async_trait::async_trait;
use changes::Changes;
use files::{Files, Whole};
use futures_util::stream::{self, BoxStream, StreamExt};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc, watch};
use worker::{PATIENCE, Silence, Worker};

/// Where inotify tells nothing (network file systems), the directory is looked at this often.
const LOOK: Duration = Duration::from_secs(10);
/// How often it is made sure that the directory is still the one that it was: inotify does not tell.
const PROBE: Duration = Duration::from_secs(2);
/// How soon what is not there yet, or away, is looked for again.
const RETRY: Duration = Duration::from_millis(500);

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    /// The directory is away: nothing is known of what is in it.
    Away(String),
    /// This alone did not work.
    Failed(String),
}

impl Trouble {
    fn failed(what: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot {what} {}: {}", path.display(), root::words(error)))
    }
}

/// Keeps leases in a directory.
pub struct DirManager {
    root: PathBuf,
    files: Arc<Files>,
    worker: Worker,
    counters: Arc<Counters>,
    tenure: Mutex<Option<Tenure>>,
}

impl DirManager {
    /// Nothing is read yet; the directory may not exist yet.
    pub fn new(root: PathBuf) -> Self {
        let files = Arc::new(Files::new(root.clone()));
        Self { root, files, worker: Worker::new(PATIENCE), counters: Arc::default(), tenure: Mutex::new(None) }
    }

    /// The leases as they are now.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub async fn list(&self) -> Result<Listing, Unanswered> {
        self.ask(|files| files.list(None)).await.map(|whole| whole.listing)
    }

    /// How long ago the holder of a key touched its file; none where there is no file.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub async fn last_seen(&self, key: &str) -> Result<Option<Duration>, Unanswered> {
        let key = key.to_owned();
        self.ask(move |files| files.last_seen(&key)).await
    }

    /// Deletes a lease's file, unless it changed since it was listed.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub async fn release(&self, entry: &Entry) -> Result<bool, Unanswered> {
        use crate::protocol::registry::{Compare, Write};
        let compare = [Compare::Unchanged { key: entry.key.clone(), modified: entry.modified }];
        let key = entry.key.clone();
        match self.ask(move |files| files.txn(&compare, &[Write::Delete { key: key.clone() }], &key)).await? {
            Answer::Txn { done, .. } => Ok(done),
            _ => Ok(false),
        }
    }

    /// Has something done with the files, and notes whether the directory is there.
    async fn ask<T: Send + 'static>(&self, work: impl FnOnce(&Files) -> Result<T, Trouble> + Send + 'static) -> Result<T, Unanswered> {
        let files = self.files.clone();
        let done = self.worker.run(move || work(&files)).await.unwrap_or_else(|silence| {
            Err(Trouble::Away(match silence {
                Silence::Late => {
                    format!("the directory of leases {} does not answer within {PATIENCE:?}: its file system hangs", self.root.display())
                }
                Silence::Stopped(why) => why,
            }))
        });
        match done {
            Ok(done) => Ok(done),
            Err(Trouble::Failed(why)) => Err(Unanswered(why.into())),
            Err(Trouble::Away(why)) => {
                self.counters.away(&why);
                Err(Unanswered(why.into()))
            }
        }
    }

    async fn drive<T: Send + 'static>(&self, coroutine: Coroutine<T>, state: Option<&watch::Sender<Held>>) -> T {
        let (_keep, mut notices) = mpsc::unbounded_channel();
        drive(coroutine, self, &mut notices, state).await
    }

    /// Tells whenever the own file is not what it was: the proof looks at what is there now.
    async fn follow_own(&self, key: String, notices: &mpsc::UnboundedSender<Notice>) {
        let changes = Changes::new();
        let mut known = None;
        loop {
            let (key, watch) = (key.clone(), changes.watch());
            let look = self.ask(move |files| files.mark_of(&key, &watch)).await;
            // While the directory is away nothing is known of the file.
            let Ok((present, watched)) = look else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            if known.is_some_and(|known| known != present) {
                let _ = notices.send(Notice::Reconnected);
            }
            known = Some(present);
            changes.within(if watched { LOOK } else { RETRY }).await;
        }
    }
}

#[async_trait]
impl Registry for DirManager {
    async fn request(&self, request: Request) -> Result<Answer, Unanswered> {
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
impl SubnetManager for DirManager {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        let text = self.ask(Files::config).await.map_err(|Unanswered(why)| Error::Unavailable(why))?;
        NetworkConfig::parse(&String::from_utf8_lossy(&text))
            .map_err(|error| Error::Unavailable(format!("{}: {error}", self.root.join("config").display()).into()))
    }

    async fn stored(&self, claim: &Claim, config: &NetworkConfig) -> Result<Option<LeaseAttrs>, Error> {
        self.list().await.map_err(|Unanswered(text)| Error::Unavailable(text))?;
        let (claim, config) = (claim.clone(), config.clone());
        self.drive(Coroutine::new(move |io| stored(io, claim, config)), None).await.map_err(Error::Refused)
    }

    async fn acquire(&self, claim: &Claim, config: &NetworkConfig, attrs: &LeaseAttrs, state: &watch::Sender<Held>) -> Result<Lease, Error> {
        let (claim, config, attrs) = (claim.clone(), config.clone(), attrs.clone());
        let tenure = self.drive(Coroutine::new(move |io| acquire(io, claim, config, attrs)), Some(state)).await.map_err(Error::Refused)?;
        let lease = tenure.lease();
        *self.tenure.lock().await = Some(tenure);
        Ok(lease)
    }

    fn watch(&self) -> BoxStream<'_, LeaseEvent> {
        let peers = Peers::of(self);
        stream::unfold(peers, |mut peers| async move { Some((peers.next().await, peers)) }).boxed()
    }

    async fn hold(&self, claim: &Claim, config: &NetworkConfig, attrs: watch::Receiver<LeaseAttrs>, state: watch::Sender<Held>) -> Lost {
        let Some(tenure) = self.tenure.lock().await.clone() else { return Lost::Taken("no lease was acquired".to_owned()) };
        let (notices, mut inbox) = mpsc::unbounded_channel();
        let key = tenure.key.clone();
        let (claim, config) = (claim.clone(), config.clone());
        let coroutine = Coroutine::new(move |io| hold(io, claim, config, tenure));
        tokio::select! {
            lost = drive(coroutine, self, &mut inbox, Some(&state)) => lost,
            () = forward(attrs, &notices) => Lost::Taken("publication ended".to_owned()),
            () = self.follow_own(key, &notices) => Lost::Taken("the watch of the own file ended".to_owned()),
        }
    }

    /// Files are reached without an address of ours.
    fn readdressed(&self, _local: &[std::net::IpAddr]) {}

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

/// The directory as a stream of changes.
struct Peers<'a> {
    manager: &'a DirManager,
    known: Option<BTreeMap<String, Entry>>,
    flawed: BTreeMap<String, String>,
    changes: Changes,
    watched: bool,
    listed: Instant,
    ready: VecDeque<LeaseEvent>,
    /// What was told of the present interruption; empty while there is none.
    told: BTreeSet<String>,
}

impl<'a> Peers<'a> {
    fn of(manager: &'a DirManager) -> Self {
        Self {
            manager,
            known: None,
            flawed: BTreeMap::new(),
            changes: Changes::new(),
            watched: false,
            listed: Instant::now(),
            ready: VecDeque::new(),
            told: BTreeSet::new(),
        }
    }

    async fn next(&mut self) -> LeaseEvent {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            let changed = if !self.told.is_empty() {
                tokio::time::sleep(RETRY).await;
                true
            } else if self.known.is_some() {
                self.changes.within(if self.watched { PROBE } else { RETRY }).await
            } else {
                true
            };
            if changed || !self.watched || self.listed.elapsed() >= LOOK {
                let watch = self.changes.watch();
                match self.manager.ask(move |files| files.list(Some(&watch))).await {
                    Ok(whole) => self.compare(whole),
                    Err(failure) => self.interrupt(failure),
                }
            } else if let Err(failure) = self.manager.ask(Files::present).await {
                self.interrupt(failure);
            }
        }
    }

    fn interrupt(&mut self, Unanswered(why): Unanswered) {
        if self.told.is_empty() && self.known.is_some() {
            self.ready.push_back(LeaseEvent::Interrupted);
        }
        if self.told.insert(why.text.clone()) {
            tracing::warn!("the leases cannot be read, everything stays as it is: {why}");
        }
    }

    fn compare(&mut self, whole: Whole) {
        let Whole { listing, flawed, watched } = whole;
        // One who reads it all: a single file that can be read says nothing of the rest.
        self.manager.counters.reached();
        self.watched = watched;
        self.listed = Instant::now();
        if !std::mem::take(&mut self.told).is_empty() && self.known.is_some() {
            tracing::info!("the leases can be read again");
            self.ready.push_back(LeaseEvent::Resumed);
        }
        let counters = &self.manager.counters;
        let present: BTreeMap<String, Entry> = listing.entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let readable = || present.values().filter(|entry| !flawed.contains_key(&entry.key));
        // A key whose file cannot be read is there all the same: what it said last stays in force.
        let news = flawed.iter().filter(|(key, why)| self.known.is_some() && self.flawed.get(*key) != Some(why));
        let unreadable: Vec<Subnets> = news.filter_map(|(key, why)| reading::unreadable(counters, key, why)).collect();
        match &self.known {
            None => {
                let listing = Listing { revision: listing.revision, entries: readable().cloned().collect() };
                let mut reset = reading::reset(counters, listing);
                if let LeaseEvent::Reset { unreadable, .. } = &mut reset {
                    unreadable.extend(flawed.iter().filter_map(|(key, why)| reading::unreadable(counters, key, why)));
                }
                self.ready.push_back(reset);
            }
            Some(known) => {
                for key in known.keys().filter(|key| !present.contains_key(*key)) {
                    counters.readable(key);
                    self.ready.extend(crate::wire::parse_key(key).map(LeaseEvent::Delete));
                }
                let same = |entry: &Entry| {
                    !self.flawed.contains_key(&entry.key) && known.get(&entry.key).is_some_and(|known| known.modified == entry.modified)
                };
                for entry in readable().filter(|entry| !same(entry)) {
                    self.ready.extend(reading::read(counters, entry.clone()).map(|read: Result<Lease, Subnets>| match read {
                        Ok(lease) => LeaseEvent::Put(lease),
                        Err(subnets) => LeaseEvent::Unreadable(subnets),
                    }));
                }
            }
        }
        self.ready.extend(unreadable.into_iter().map(LeaseEvent::Unreadable));
        self.known = Some(present);
        self.flawed = flawed;
    }
}
