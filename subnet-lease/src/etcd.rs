//! Leases in etcd v3, with Go flannel's keys and values.

pub mod client;
pub mod cluster;
pub mod connection;
mod dial;
mod errors;
mod tls;
pub mod watch;

use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs};
use crate::manager::{Claim, Counters, Error, Held, Lost, SubnetManager};
use crate::protocol::acquire::{Tenure, acquire, stored};
use crate::protocol::coroutine::Coroutine;
use crate::protocol::drive::{Registry, drive, forward};
use crate::protocol::hold::hold;
use crate::protocol::registry::{Answer, Entry, Listing, Notice, Request, Unanswered};
use crate::reading;
use crate::reason::{Kind, Reason, Told};
use crate::table::LeaseEvent;
use async_trait::async_trait;
use client::EtcdRegistry;
pub use connection::EtcdOptions;
use futures_util::stream::{self, BoxStream, StreamExt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, watch as channel};
use watch::{Anchor, Broken, Change, Watch};

/// How a lease of etcd's stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTime {
    /// When it ends unless it is renewed.
    pub left: Duration,
    /// How long ago it was granted or renewed last.
    pub last_seen: Duration,
}

/// Keeps leases in etcd.
pub struct EtcdManager {
    registry: EtcdRegistry,
    tenure: Mutex<Option<Tenure>>,
}

impl EtcdManager {
    /// Nothing is connected yet.
    pub fn new(options: EtcdOptions) -> Self {
        Self { registry: EtcdRegistry::new(options), tenure: Mutex::new(None) }
    }

    /// The leases as they are now, for tools.
    ///
    /// # Errors
    /// etcd did not answer.
    pub async fn list(&self) -> Result<Listing, Unanswered> {
        self.registry.list().await
    }

    /// Deletes a lease's key, unless it changed since it was listed.
    ///
    /// # Errors
    /// etcd did not answer.
    pub async fn release(&self, entry: &Entry) -> Result<bool, Unanswered> {
        use crate::protocol::registry::{Compare, Write};
        let compare = vec![Compare::Unchanged { key: entry.key.clone(), modified: entry.modified }];
        let write = vec![Write::Delete { key: entry.key.clone() }];
        match self.registry.request(Request::Txn { compare, write, key: entry.key.clone() }).await? {
            Answer::Txn { done, .. } => Ok(done),
            _ => Ok(false),
        }
    }

    /// How a lease of etcd's stands; none when it is gone, or for 0.
    ///
    /// # Errors
    /// etcd did not answer.
    pub async fn lease_time(&self, lease: i64) -> Result<Option<LeaseTime>, Unanswered> {
        const DEADLINE: Duration = Duration::from_secs(5);
        if lease == 0 {
            return Ok(None);
        }
        self.registry.counters.call("lease-ttl");
        let connection = self.registry.connections.get().await?;
        let mut client = connection.client.lease_client();
        let answer = match tokio::time::timeout(DEADLINE, client.time_to_live(lease, None)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let text = format!("etcd at {} does not tell of a lease: {}", connection.endpoint, errors::words(&error));
                return Err(Unanswered(Reason::new(errors::kind(&error), text)));
            }
            Err(_) => {
                let text = format!("etcd at {} did not answer within {DEADLINE:?}", connection.endpoint);
                return Err(Unanswered(Reason::new(Kind::Unreachable, text)));
            }
        };
        let seconds = |number: i64| Duration::from_secs(u64::try_from(number).unwrap_or(0));
        let (left, granted) = (answer.ttl(), answer.granted_ttl());
        Ok((left > 0).then(|| LeaseTime { left: seconds(left), last_seen: seconds(granted.saturating_sub(left)) }))
    }

    /// Reads an entry into a lease, counting and telling what cannot be read.
    fn read(&self, entry: Entry) -> Option<Result<Lease, crate::Subnets>> {
        reading::read(&self.registry.counters, entry)
    }
}

#[async_trait]
impl SubnetManager for EtcdManager {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        let prefix = &self.registry.connections.options().prefix;
        let value = self
            .registry
            .get("config")
            .await
            .map_err(|Unanswered(why)| if why.kind.has(&Kind::Credentials) { Error::Refused(why.text) } else { Error::Unavailable(why) })?;
        let Some(value) = value else {
            return Err(Error::Unavailable(format!(
                "the network configuration {prefix}/config is not in etcd (v3): put it there with \
                 `etcdctl put {prefix}/config '{{\"Network\":\"10.244.0.0/16\",\"Backend\":{{\"Type\":\"vxlan\"}}}}'` (with ETCDCTL_API=3 on etcdctl 3.3 and older)"
            ).into()));
        };
        NetworkConfig::parse(&String::from_utf8_lossy(&value)).map_err(|error| Error::Unavailable(format!("{prefix}/config: {error}").into()))
    }

    async fn stored(&self, claim: &Claim, config: &NetworkConfig) -> Result<Option<LeaseAttrs>, Error> {
        let listing = self.registry.list().await.map_err(|Unanswered(why)| Error::Unavailable(why))?;
        let (claim, config) = (claim.clone(), config.clone());
        let reuse = Reuse { registry: &self.registry, first: Mutex::new(Some(listing.clone())), last: Mutex::new(None) };
        let (_keep, mut notices) = mpsc::unbounded_channel();
        let found = drive(Coroutine::new(move |io| stored(io, claim, config)), &reuse, &mut notices, None).await;
        self.registry.keep_recent(listing).await;
        found.map_err(Error::Refused)
    }

    async fn acquire(&self, claim: &Claim, config: &NetworkConfig, attrs: &LeaseAttrs, state: &channel::Sender<Held>) -> Result<Lease, Error> {
        let (claim, config, attrs) = (claim.clone(), config.clone(), attrs.clone());
        let first = self.registry.take_recent().await;
        let reuse = Reuse { registry: &self.registry, first: Mutex::new(first), last: Mutex::new(None) };
        let (_keep, mut notices) = mpsc::unbounded_channel();
        let coroutine = Coroutine::new(move |io| acquire(io, claim, config, attrs));
        let tenure = drive(coroutine, &reuse, &mut notices, Some(state)).await.map_err(Error::Refused)?;
        if let Some(last) = reuse.last.into_inner() {
            self.registry.keep_recent(last).await;
        }
        let lease = tenure.lease();
        *self.tenure.lock().await = Some(tenure);
        Ok(lease)
    }

    fn watch(&self) -> BoxStream<'_, LeaseEvent> {
        let peers = Peers { manager: self, anchor: None, watch: None, ready: VecDeque::new(), attempt: 0, interrupted: false, told: Told::default() };
        stream::unfold(peers, |mut peers| async move { Some((peers.next().await, peers)) }).boxed()
    }

    async fn hold(&self, claim: &Claim, config: &NetworkConfig, attrs: channel::Receiver<LeaseAttrs>, state: channel::Sender<Held>) -> Lost {
        let Some(tenure) = self.tenure.lock().await.clone() else { return Lost::Taken("no lease was acquired".to_owned()) };
        let (notices, mut inbox) = mpsc::unbounded_channel();
        let (key, modified) = (tenure.key.clone(), tenure.modified);
        let (claim, config) = (claim.clone(), config.clone());
        let coroutine = Coroutine::new(move |io| hold(io, claim, config, tenure));
        tokio::select! {
            lost = drive(coroutine, &self.registry, &mut inbox, Some(&state)) => lost,
            () = self.watch_own(&key, modified, &notices) => Lost::Taken("the watch of the own key ended".to_owned()),
            () = forward(attrs, &notices) => Lost::Taken("publication ended".to_owned()),
        }
    }

    fn readdressed(&self, local: &[std::net::IpAddr]) {
        self.registry.connections.readdressed(local);
    }

    fn counters(&self) -> Arc<Counters> {
        self.registry.counters.clone()
    }

    fn renew(&self) -> bool {
        self.registry.connections.renew();
        true
    }
}

impl EtcdManager {
    /// Between 0.1 and 10 s, longer with each attempt, and not the same for all nodes; over when this host's addresses change: what they kept
    /// from succeeding may succeed now. The number of the next attempt.
    async fn pause(&self, attempt: u32) -> u32 {
        let base = Duration::from_millis(100 << attempt.min(6)).min(Duration::from_secs(5));
        tokio::select! {
            () = tokio::time::sleep(base.mul_f64(1.0 + rand::random::<f64>())) => attempt + 1,
            () = self.registry.connections.moved() => 0,
        }
    }

    /// Tells what happens to exactly one key; never ends.
    async fn watch_own(&self, key: &str, modified: i64, notices: &mpsc::UnboundedSender<Notice>) {
        let mut anchor = Anchor::Listed { revision: modified, newest: None };
        let mut attempt = 0;
        let mut gap: Option<Notice> = None;
        loop {
            let broken = match Box::pin(Watch::open(&self.registry, key, true, &anchor)).await {
                Err(broken) => broken,
                Ok(mut watch) => {
                    attempt = 0;
                    if let Some(notice) = gap.take() {
                        let _ = notices.send(notice);
                    }
                    loop {
                        match watch.next().await {
                            Err(broken) => break broken,
                            Ok(changes) => {
                                for change in changes {
                                    anchor = Anchor::Event(change.clone());
                                    let _ = notices.send(match change {
                                        Change::Put(entry) => Notice::Written(entry),
                                        Change::Delete { revision, .. } => Notice::Deleted(revision),
                                    });
                                }
                            }
                        }
                    }
                }
            };
            match broken {
                Broken::Renewed => {
                    gap.get_or_insert(Notice::Reconnected);
                }
                Broken::Stream(_) => {
                    gap.get_or_insert(Notice::Reconnected);
                    attempt = self.pause(attempt).await;
                }
                Broken::History(why) => {
                    tracing::info!("this node's lease is read anew: {why}");
                    gap = Some(Notice::Discontinuity);
                    match self.registry.revision().await {
                        Ok(revision) => anchor = Anchor::Listed { revision, newest: None },
                        Err(_) => {
                            attempt = self.pause(attempt).await;
                        }
                    }
                }
            }
        }
    }
}

/// The watch of all leases, as a stream.
struct Peers<'a> {
    manager: &'a EtcdManager,
    anchor: Option<Anchor>,
    watch: Option<Watch<'a>>,
    ready: VecDeque<LeaseEvent>,
    attempt: u32,
    /// Whether a list was handed out that is not followed at present.
    interrupted: bool,
    told: Told,
}

impl Peers<'_> {
    async fn next(&mut self) -> LeaseEvent {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            if let Err(broken) = self.go_on().await {
                // Also where it never stood: a list that nobody follows grows old.
                self.watch = None;
                if self.anchor.is_some() && !std::mem::replace(&mut self.interrupted, true) {
                    self.ready.push_back(LeaseEvent::Interrupted);
                }
                match broken {
                    Broken::Renewed => {}
                    Broken::Stream(Unanswered(why)) => {
                        // A first try that fails is no news: the next endpoint may be well.
                        if self.attempt > 0 && self.told.news(Some(&why)) {
                            tracing::warn!("the watch of the leases is interrupted, everything stays as it is: {why}");
                        }
                        self.attempt = self.manager.pause(self.attempt).await;
                    }
                    Broken::History(why) => {
                        tracing::info!("the leases are read anew: {why}");
                        self.anchor = None;
                        self.attempt = self.manager.pause(self.attempt).await;
                    }
                }
            }
        }
    }

    async fn go_on(&mut self) -> Result<(), Broken> {
        let manager = self.manager;
        let Some(anchor) = &self.anchor else {
            let listing = match manager.registry.take_recent().await {
                Some(listing) => listing,
                None => manager.registry.list().await.map_err(Broken::Stream)?,
            };
            // Of lease keys alone: one that is no UTF-8 cannot be asked for.
            let newest = listing.entries.iter().filter(|entry| entry.subnets().is_some()).max_by_key(|entry| entry.modified).cloned();
            self.anchor = Some(Anchor::Listed { revision: listing.revision, newest });
            self.ready.push_back(reading::reset(&manager.registry.counters, listing));
            return Ok(());
        };
        let Some(watch) = &mut self.watch else {
            self.watch = Some(Box::pin(Watch::open(&manager.registry, "", false, anchor)).await?);
            self.interrupted = false;
            self.ready.push_back(LeaseEvent::Resumed);
            self.attempt = 0;
            if self.told.news(None) {
                tracing::info!("the watch of the leases goes on");
            }
            return Ok(());
        };
        for change in watch.next().await? {
            self.anchor = Some(Anchor::Event(change.clone()));
            match change {
                Change::Put(entry) => match manager.read(entry) {
                    Some(Ok(lease)) => self.ready.push_back(LeaseEvent::Put(lease)),
                    Some(Err(subnets)) => self.ready.push_back(LeaseEvent::Unreadable(subnets)),
                    None => {}
                },
                Change::Delete { key, .. } => {
                    manager.registry.counters.readable(&key);
                    self.ready.extend(crate::wire::parse_key(&key).map(LeaseEvent::Delete));
                }
            }
        }
        Ok(())
    }
}

/// The registry, serving one list that is at hand already and keeping the last one for the next reader.
struct Reuse<'a> {
    registry: &'a EtcdRegistry,
    first: Mutex<Option<Listing>>,
    last: Mutex<Option<Listing>>,
}

#[async_trait]
impl Registry for Reuse<'_> {
    async fn request(&self, request: Request) -> Result<Answer, Unanswered> {
        if request == Request::List
            && let Some(listing) = self.first.lock().await.take()
        {
            return Ok(Answer::Listing(listing));
        }
        let answer = self.registry.request(request).await;
        if let Ok(Answer::Listing(listing)) = &answer {
            *self.last.lock().await = Some(listing.clone());
        }
        answer
    }
}
