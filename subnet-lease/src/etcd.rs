//! Keeps leases in etcd v3, with Go flannel's keys and values.

mod call_error;
pub mod client;
pub mod cluster;
pub mod connection;
mod dial;
mod error;
mod options;
mod tls;
pub mod watch;

use crate::config::NetworkConfig;
use crate::manager::{Counters, Error, Liveness, Nature};
use crate::protocol::following::Following;
use crate::protocol::keys::{KeyManager, KeyStore, Recent};
use crate::protocol::registry::Notice;
use crate::protocol::view::Item;
use crate::table::LeaseEvent;
use async_trait::async_trait;
use call_error::CallErrorKind;
use client::EtcdRegistry;
use error::EtcdError;
use futures_util::stream::{self, BoxStream, StreamExt};
pub use options::EtcdOptions;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use types::backoff::Backoff;
use types::problem::ConfigPlace;
use types::{Detail, Problem};
use watch::{Anchor, Change, Watch, WatchError};

/// Minimum delay between two attempts to open a watch. The actual delay is random, up to twice as long, so that nodes do not retry at the same time.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseTime {
    /// Until the lease expires without a renewal.
    left: Duration,
    /// Time since the grant or the last renewal.
    last_seen: Duration,
}

pub type EtcdManager = KeyManager<EtcdRegistry>;

impl EtcdManager {
    /// It connects on the first request.
    #[must_use]
    pub fn new(options: EtcdOptions) -> Self {
        Self::on(EtcdRegistry::new(options))
    }
}

#[async_trait]
impl KeyStore for EtcdRegistry {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        let prefix = &self.connections.options().prefix;
        let value = self.get("config").await.map_err(|why| {
            let is_final = why.has(|kind| kind == CallErrorKind::Credentials);
            let kind = if is_final { Error::Refused } else { Error::Unavailable };
            kind(why.into())
        })?;
        let place = ConfigPlace::Key(format!("{prefix}/config"));
        let Some(value) = value else {
            let text = format!(
                "the network configuration {prefix}/config is not in etcd (v3); put it there with `etcdctl put {prefix}/config '{EXAMPLE}'` \
                 (with ETCDCTL_API=3 on etcdctl 3.3 and older)"
            );
            let detail = Detail::ConfigMissing { place, example: EXAMPLE.to_owned() };
            return Err(Error::Unavailable(Problem::new("config-missing", text).with(detail)));
        };
        NetworkConfig::parse(&String::from_utf8_lossy(&value)).map_err(|why| {
            let text = format!("{prefix}/config: {why}");
            let detail = Detail::ConfigInvalid { place: Some(place) };
            Error::Unavailable(Problem { text, detail, ..why })
        })
    }

    fn watch<'a>(&'a self, recent: &'a Recent) -> BoxStream<'a, LeaseEvent> {
        let following = Following::new(self.counters.clone());
        let peers =
            Peers { registry: self, recent, anchor: None, watch: None, following, attempt: 0 };
        stream::unfold(peers, |mut peers| async move { Some((peers.next().await, peers)) }).boxed()
    }

    async fn watch_key(&self, key: &str, modified: i64, notices: &mpsc::UnboundedSender<Notice>) {
        let mut anchor = Anchor::Listed { revision: modified, newest: None };
        let mut attempt = 0;
        let mut gap: Option<Notice> = None;
        loop {
            let broken = match Box::pin(Watch::open(self, key, true, &anchor)).await {
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
                                        Change::Delete { revision, .. } => {
                                            Notice::Deleted(revision)
                                        }
                                    });
                                }
                            }
                        }
                    }
                }
            };
            match broken {
                WatchError::Renewed => {
                    gap.get_or_insert(Notice::Reconnected);
                }
                WatchError::Stream(_) => {
                    gap.get_or_insert(Notice::Reconnected);
                    attempt = self.pause(attempt).await;
                }
                WatchError::History(why) => {
                    tracing::info!(reason = %why, "reading this node's lease again");
                    gap = Some(Notice::Discontinuity);
                    match self.revision().await {
                        Ok(revision) => anchor = Anchor::Listed { revision, newest: None },
                        Err(_) => {
                            attempt = self.pause(attempt).await;
                        }
                    }
                }
            }
        }
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn readdressed(&self, local: &[std::net::IpAddr]) {
        self.connections.readdressed(local);
    }

    fn renew(&self) -> bool {
        self.connections.renew();
        true
    }

    fn place(&self) -> String {
        let options = self.connections.options();
        format!("{}/subnets/ of etcd at {}", options.prefix, options.endpoints.join(","))
    }

    fn nature(&self) -> Nature {
        Nature { asks_a_server: true, ..Nature::default() }
    }

    async fn liveness(&self, item: &Item) -> Result<Liveness, Problem> {
        let time = self.lease_time(item.keepalive()).await?;
        Ok(Liveness {
            heard: time.map(|time| time.last_seen),
            left: time.filter(|_| !item.reserved()).map(|time| time.left),
        })
    }
}

impl EtcdRegistry {
    /// `None` if the lease does not exist or its id is 0.
    async fn lease_time(&self, lease: i64) -> Result<Option<LeaseTime>, Problem> {
        const DEADLINE: Duration = Duration::from_secs(5);
        if lease == 0 {
            return Ok(None);
        }
        self.counters.call("lease-ttl");
        let connection = self.connected().await?;
        let mut client = connection.client.lease_client();
        let answer = match tokio::time::timeout(DEADLINE, client.time_to_live(lease, None)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                return Err(EtcdError::LeaseState(connection.endpoint, (&error).into()).into());
            }
            Err(_) => return Err(EtcdError::NoAnswer(connection.endpoint, DEADLINE).into()),
        };
        let seconds = |number: i64| Duration::from_secs(u64::try_from(number).unwrap_or(0));
        let (left, granted) = (answer.ttl(), answer.granted_ttl());
        Ok((left > 0).then(|| LeaseTime {
            left: seconds(left),
            last_seen: seconds(granted.saturating_sub(left)),
        }))
    }

    /// Waits before the next attempt to open a watch, and gives its number. If this host's addresses change, it ends at once, because the next
    /// attempt may succeed.
    async fn pause(&self, attempt: u32) -> u32 {
        tokio::select! {
            () = tokio::time::sleep(RETRY.after(attempt).mul_f64(1.0 + rand::random::<f64>())) => attempt + 1,
            () = self.connections.moved() => 0,
        }
    }
}

struct Peers<'a> {
    registry: &'a EtcdRegistry,
    recent: &'a Recent,
    anchor: Option<Anchor>,
    watch: Option<Watch<'a>>,
    following: Following,
    attempt: u32,
}

impl Peers<'_> {
    async fn next(&mut self) -> LeaseEvent {
        loop {
            if let Some(event) = self.following.next() {
                return event;
            }
            if let Err(broken) = self.go_on().await {
                self.watch = None;
                match broken {
                    WatchError::Renewed => self.following.interrupted(None),
                    WatchError::Stream(why) => {
                        // The first failed attempt is not reported, because the next endpoint may work.
                        self.following
                            .interrupted(Some(&Problem::from(why)).filter(|_| self.attempt > 0));
                        self.attempt = self.registry.pause(self.attempt).await;
                    }
                    WatchError::History(why) => {
                        self.following.interrupted(None);
                        tracing::info!(reason = %why, "reading all leases again");
                        self.anchor = None;
                        self.attempt = self.registry.pause(self.attempt).await;
                    }
                }
            }
        }
    }

    async fn go_on(&mut self) -> Result<(), WatchError> {
        let Some(anchor) = &self.anchor else {
            let listing = match self.recent.take().await {
                Some(listing) => listing,
                None => self.registry.list().await.map_err(WatchError::Stream)?,
            };
            // Only lease keys qualify: a key that is not UTF-8 cannot be requested.
            let newest = listing
                .entries
                .iter()
                .filter(|entry| entry.subnets().is_some())
                .max_by_key(|entry| entry.modified)
                .cloned();
            self.anchor = Some(Anchor::Listed { revision: listing.revision, newest });
            self.following.listed(listing, []);
            return Ok(());
        };
        let Some(watch) = &mut self.watch else {
            self.watch = Some(Box::pin(Watch::open(self.registry, "", false, anchor)).await?);
            self.attempt = 0;
            self.following.resumed();
            return Ok(());
        };
        for change in watch.next().await? {
            self.anchor = Some(Anchor::Event(change.clone()));
            match change {
                Change::Put(entry) => self.following.written(entry),
                Change::Delete { key, .. } => self.following.deleted(&key),
            }
        }
        Ok(())
    }
}
