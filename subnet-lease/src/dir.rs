//! Leases as files in a directory: the embedded default for a laptop, a lab or a static fleet.
//!
//! `config` is the network configuration, `subnets/<key>` a lease with the same key and JSON as in etcd. Files appear by
//! rename; every change is made under a lock; names that begin with a dot are nobody's lease. A lease never expires:
//! its holder touches its file every minute to show that it lives.

mod files;

use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs};
use crate::manager::{Claim, Counters, Error, Held, Lost, SubnetManager};
use crate::protocol::acquire::{Tenure, acquire, stored};
use crate::protocol::coroutine::Coroutine;
use crate::protocol::drive::{Registry, drive, forward};
use crate::protocol::hold::hold;
use crate::protocol::registry::{Answer, Entry, Failure, Listing, Notice, Request};
use crate::table::LeaseEvent;
use crate::{Subnets, reading};
use async_trait::async_trait;
use files::{Changes, Files};
use futures_util::stream::{self, BoxStream, StreamExt};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc, watch};

/// Keeps leases in a directory.
pub struct DirManager {
    files: Arc<Files>,
    counters: Arc<Counters>,
    tenure: Mutex<Option<Tenure>>,
}

impl DirManager {
    /// Nothing is read yet; the directory may not exist yet.
    pub fn new(root: PathBuf) -> Self {
        Self { files: Arc::new(Files::new(root)), counters: Arc::default(), tenure: Mutex::new(None) }
    }

    /// The leases as they are now.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Listing, Failure> {
        self.files.list()
    }

    /// How long ago the holder of a key touched its file; none where there is no file.
    pub fn heard(&self, key: &str) -> Option<std::time::Duration> {
        self.files.heard(key)
    }

    /// Deletes a lease's file, unless it changed since it was listed.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn release(&self, entry: &Entry) -> Result<bool, Failure> {
        use crate::protocol::registry::{Compare, Write};
        let compare = [Compare::Unchanged { key: entry.key.clone(), modified: entry.modified }];
        match self.files.txn(&compare, &[Write::Delete { key: entry.key.clone() }], &entry.key)? {
            Answer::Txn { done, .. } => Ok(done),
            _ => Ok(false),
        }
    }

    async fn drive<T: Send + 'static>(&self, coroutine: Coroutine<T>, state: Option<&watch::Sender<Held>>) -> T {
        let (_keep, mut notices) = mpsc::unbounded_channel();
        drive(coroutine, self, &mut notices, state).await
    }
}

#[async_trait]
impl Registry for DirManager {
    async fn request(&self, request: Request) -> Result<Answer, Failure> {
        self.counters.call(match &request {
            Request::List => "list",
            Request::Txn { .. } => "txn",
            Request::KeepAlive { .. } => "touch",
            Request::Inherit { .. } => return Ok(Answer::Alive(false)),
            Request::Heard { .. } => "stat",
            Request::Grant | Request::Revoke { .. } => return Ok(if request == Request::Grant { Answer::Granted(0) } else { Answer::Revoked }),
        });
        let files = self.files.clone();
        let done = tokio::task::spawn_blocking(move || match request {
            Request::List => files.list().map(Answer::Listing),
            Request::Heard { key, .. } => Ok(Answer::Heard(files.heard(&key))),
            Request::Txn { compare, write, key } => files.txn(&compare, &write, &key),
            Request::KeepAlive { key, .. } => files.touch(&key).map(Answer::Alive),
            Request::Grant => Ok(Answer::Granted(0)),
            Request::Inherit { .. } => Ok(Answer::Alive(false)),
            Request::Revoke { .. } => Ok(Answer::Revoked),
        });
        done.await.unwrap_or_else(|error| Err(Failure(format!("the directory's worker stopped: {error}").into())))
    }
}

#[async_trait]
impl SubnetManager for DirManager {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        let path = self.files.root().join("config");
        let text = match tokio::fs::read(&path).await {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::Unavailable(format!(
                    "the network configuration {} is not there: write it, e.g. {{\"Network\":\"10.244.0.0/16\",\"Backend\":{{\"Type\":\"vxlan\"}}}}",
                    path.display()
                ).into()));
            }
            Err(error) => return Err(Error::Unavailable(format!("cannot read the network configuration {}: {error}", path.display()).into())),
        };
        NetworkConfig::parse(&text).map_err(|error| Error::Unavailable(format!("{}: {error}", path.display()).into()))
    }

    async fn stored(&self, claim: &Claim, config: &NetworkConfig) -> Result<Option<LeaseAttrs>, Error> {
        self.files.list().map_err(|Failure(text)| Error::Unavailable(text))?;
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
        let peers = Peers { manager: self, known: None, changes: None, ready: VecDeque::new(), interrupted: false };
        stream::unfold(peers, |mut peers| async move { Some((peers.next().await, peers)) }).boxed()
    }

    async fn hold(&self, claim: &Claim, config: &NetworkConfig, attrs: watch::Receiver<LeaseAttrs>, state: watch::Sender<Held>) -> Lost {
        let Some(tenure) = self.tenure.lock().await.clone() else { return Lost::Taken("no lease was acquired".to_owned()) };
        let (notices, mut inbox) = mpsc::unbounded_channel();
        let key = tenure.key.clone();
        let (claim, config) = (claim.clone(), config.clone());
        let coroutine = Coroutine::new(move |io| hold(io, claim, config, tenure));
        // Whatever happens to the own file, the proof looks at what is there now.
        let own = async {
            let mut changes = Changes::of(self.files.clone());
            let mut known = self.files.read(&key).map(|entry| entry.modified);
            loop {
                changes.next().await;
                let present = self.files.read(&key).map(|entry| entry.modified);
                if present != known {
                    known = present;
                    let _ = notices.send(Notice::Reconnected);
                }
            }
        };
        tokio::select! {
            lost = drive(coroutine, self, &mut inbox, Some(&state)) => lost,
            () = forward(attrs, &notices) => Lost::Taken("publication ended".to_owned()),
            () = own => Lost::Taken("the watch of the own file ended".to_owned()),
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
    changes: Option<Changes>,
    ready: VecDeque<LeaseEvent>,
    interrupted: bool,
}

impl Peers<'_> {
    async fn next(&mut self) -> LeaseEvent {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            if self.known.is_some() {
                self.changes.get_or_insert_with(|| Changes::of(self.manager.files.clone())).next().await;
            } else {
                // Subscribe before the first read, so that nothing falls between.
                self.changes = Some(Changes::of(self.manager.files.clone()));
            }
            match self.manager.files.list() {
                Ok(listing) => self.compare(listing),
                Err(Failure(why)) => {
                    if !self.interrupted {
                        tracing::warn!("the leases cannot be read, everything stays as it is: {why}");
                        self.interrupted = true;
                        if self.known.is_some() {
                            self.ready.push_back(LeaseEvent::Interrupted);
                        }
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
                }
            }
        }
    }

    fn compare(&mut self, listing: Listing) {
        if std::mem::take(&mut self.interrupted) && self.known.is_some() {
            self.ready.push_back(LeaseEvent::Resumed);
        }
        let counters = &self.manager.counters;
        let present: BTreeMap<String, Entry> = listing.entries.iter().map(|entry| (entry.key.clone(), entry.clone())).collect();
        match &self.known {
            None => self.ready.push_back(reading::reset(counters, listing)),
            Some(known) => {
                for key in known.keys().filter(|key| !present.contains_key(*key)) {
                    counters.readable(key);
                    self.ready.extend(crate::wire::parse_key(key).map(LeaseEvent::Delete));
                }
                for entry in present.values().filter(|entry| known.get(&entry.key).is_none_or(|known| known.modified != entry.modified)) {
                    self.ready.extend(reading::read(counters, entry.clone()).map(|read: Result<Lease, Subnets>| match read {
                        Ok(lease) => LeaseEvent::Put(lease),
                        Err(subnets) => LeaseEvent::Unreadable(subnets),
                    }));
                }
            }
        }
        self.known = Some(present);
    }
}
