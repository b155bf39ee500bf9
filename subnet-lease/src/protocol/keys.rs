//! The manager of leases in key-value stores, which runs the protocol on the store.

use super::acquire::{acquire, stored};
use super::coroutine::{Coroutine, Io};
use super::drive::{Registry, drive, forward};
use super::hold::hold;
use super::registry::{Answer, Compare, Entry, Listing, Notice, Request, Write};
use super::tenure::Tenure;
use super::view::Item;
use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs};
use crate::manager::{
    Claim, Counters, Error, Held, LastHeard, LeaseLostError, LeaseStore, Liveness, Nature,
    NodeState, SubnetManager, no_lease_acquired, publication_ended,
};
use crate::table::LeaseEvent;
use crate::wire;
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc, watch};
use types::{Problem, Subnets};

/// Maximum age of a list that a reader may reuse.
const FRESH: Duration = Duration::from_secs(3);

/// This trait covers the differences between etcd and a directory.
#[async_trait]
pub trait KeyStore: Registry {
    async fn network_config(&self) -> Result<NetworkConfig, Error>;

    /// The stream may begin with the list in `recent` instead of a new one.
    fn watch<'a>(&'a self, recent: &'a Recent) -> BoxStream<'a, LeaseEvent>;

    /// Reports all changes after the revision `modified`. Never returns.
    async fn watch_key(&self, key: &str, modified: i64, notices: &mpsc::UnboundedSender<Notice>);

    fn counters(&self) -> Arc<Counters>;

    fn readdressed(&self, _local: &[IpAddr]) {}

    fn renew(&self) -> bool {
        false
    }

    fn place(&self) -> String;

    fn nature(&self) -> Nature {
        Nature::default()
    }

    async fn liveness(&self, item: &Item) -> Result<Liveness, Problem>;
}

pub struct KeyManager<S> {
    pub(crate) store: S,
    tenure: Mutex<Option<Tenure>>,
    recent: Recent,
}

impl<S: KeyStore> KeyManager<S> {
    /// Sends no request to the store.
    pub fn on(store: S) -> Self {
        Self { store, tenure: Mutex::new(None), recent: Recent::default() }
    }

    /// `first` is the reply to the coroutine's first request for a list. The last list is kept for the next reader.
    async fn run<T, F>(
        &self,
        first: Option<Listing>,
        state: Option<&watch::Sender<Held>>,
        part: impl FnOnce(Io) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Problem>> + Send + 'static,
    {
        let reuse =
            Reuse { registry: &self.store, first: Mutex::new(first), last: Mutex::new(None) };
        let (_keep, mut notices) = mpsc::unbounded_channel();
        let done = drive(Coroutine::new(part), &reuse, &mut notices, state).await;
        if let Some(last) = reuse.last.into_inner() {
            self.recent.keep(last).await;
        }
        done.map_err(Error::Refused)
    }
}

#[async_trait]
impl<S: KeyStore> SubnetManager for KeyManager<S> {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        self.store.network_config().await
    }

    async fn stored(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
    ) -> Result<Option<LeaseAttrs>, Error> {
        let listing = self.list().await.map_err(Error::Unavailable)?;
        let (claim, config) = (claim.clone(), config.clone());
        self.run(Some(listing), None, move |io| stored(io, claim, config)).await
    }

    async fn acquire(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        state: &watch::Sender<Held>,
    ) -> Result<Lease, Error> {
        let (claim, config, attrs) = (claim.clone(), config.clone(), attrs.clone());
        let first = self.recent.take().await;
        let tenure =
            self.run(first, Some(state), move |io| acquire(io, claim, config, attrs)).await?;
        let lease = tenure.lease();
        *self.tenure.lock().await = Some(tenure);
        Ok(lease)
    }

    fn watch(&self) -> BoxStream<'_, LeaseEvent> {
        self.store.watch(&self.recent)
    }

    async fn hold(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        node: NodeState,
        state: watch::Sender<Held>,
    ) -> LeaseLostError {
        let Some(tenure) = self.tenure.lock().await.clone() else {
            return no_lease_acquired();
        };
        let (notices, mut inbox) = mpsc::unbounded_channel();
        let (key, modified) = (tenure.key.clone(), tenure.modified);
        let (claim, config) = (claim.clone(), config.clone());
        let coroutine = Coroutine::new(move |io| hold(io, claim, config, tenure));
        tokio::select! {
            lost = drive(coroutine, &self.store, &mut inbox, Some(&state)) => lost,
            () = self.store.watch_key(&key, modified, &notices) => {
                let text = "the watch of this node's lease ended";
                LeaseLostError::Taken(Problem::new("lease-watch-ended", text))
            }
            () = forward(node.attrs, &notices) => publication_ended(),
        }
    }

    async fn last_heard(&self, lease: &Subnets) -> Option<LastHeard> {
        let key = wire::render_key(lease);
        // A transaction without writes reads one key, together with the lease to which it is attached.
        let read = Request::Txn {
            compare: vec![Compare::NoneUnder(wire::key_prefix(lease))],
            write: Vec::new(),
            key: key.clone(),
        };
        let Ok(Answer::Txn { present: Some(entry), .. }) = self.store.request(read).await else {
            return None;
        };
        let item = Item::of(entry)?;
        // Go flannel renews once a day, so its lease does not show whether it is alive.
        item.node()?;
        let lease = item.keepalive();
        match self.store.request(Request::LastSeen { key, lease }).await {
            Ok(Answer::LastSeen(seen)) => Some(LastHeard { ago: seen?, node: None }),
            _ => None,
        }
    }

    fn readdressed(&self, local: &[IpAddr]) {
        self.store.readdressed(local);
    }

    fn counters(&self) -> Arc<Counters> {
        self.store.counters()
    }

    fn renew(&self) -> bool {
        self.store.renew()
    }
}

#[async_trait]
impl<S: KeyStore> LeaseStore for KeyManager<S> {
    fn place(&self) -> String {
        self.store.place()
    }

    fn nature(&self) -> Nature {
        self.store.nature()
    }

    async fn config(&self) -> Result<NetworkConfig, Error> {
        self.store.network_config().await
    }

    async fn list(&self) -> Result<Listing, Problem> {
        match self.store.request(Request::List).await? {
            Answer::Listing(listing) => Ok(listing),
            _ => Ok(Listing::default()),
        }
    }

    async fn liveness(&self, entry: &Entry) -> Result<Liveness, Problem> {
        let Some(item) = Item::of(entry.clone()) else {
            return Ok(Liveness::default());
        };
        self.store.liveness(&item).await
    }

    async fn release(&self, entry: &Entry) -> Result<bool, Problem> {
        let compare = vec![Compare::Unchanged { key: entry.key.clone(), modified: entry.modified }];
        let write = vec![Write::Delete { key: entry.key.clone() }];
        match self.store.request(Request::Txn { compare, write, key: entry.key.clone() }).await? {
            Answer::Txn { done, .. } => Ok(done),
            _ => Ok(false),
        }
    }

    async fn reserve(
        &self,
        subnets: &Subnets,
        value: String,
        present: Option<&Entry>,
    ) -> Result<bool, Problem> {
        let key = present.map_or_else(|| wire::render_key(subnets), |entry| entry.key.clone());
        let compare = match present {
            Some(entry) => Compare::Unchanged { key: entry.key.clone(), modified: entry.modified },
            None => Compare::NoneUnder(wire::key_prefix(subnets)),
        };
        let write = Write::Put { key: key.clone(), value, lease: 0 };
        match self
            .store
            .request(Request::Txn { compare: vec![compare], write: vec![write], key })
            .await?
        {
            Answer::Txn { done, .. } => Ok(done),
            _ => Ok(false),
        }
    }
}

/// The next reader may use it once instead of a request to the store.
#[derive(Default)]
pub struct Recent(Mutex<Option<(Instant, Listing)>>);

impl Recent {
    async fn keep(&self, listing: Listing) {
        *self.0.lock().await = Some((Instant::now(), listing));
    }

    /// `None` if the list is too old or another reader has received it.
    pub async fn take(&self) -> Option<Listing> {
        self.0
            .lock()
            .await
            .take()
            .filter(|(at, _)| at.elapsed() < FRESH)
            .map(|(_, listing)| listing)
    }
}

/// Replies to the first `List` with an existing list, and keeps the last one.
struct Reuse<'a> {
    registry: &'a dyn Registry,
    first: Mutex<Option<Listing>>,
    last: Mutex<Option<Listing>>,
}

#[async_trait]
impl Registry for Reuse<'_> {
    async fn request(&self, request: Request) -> Result<Answer, Problem> {
        let first = if request == Request::List { self.first.lock().await.take() } else { None };
        let answer = match first {
            Some(listing) => Ok(Answer::Listing(listing)),
            None => self.registry.request(request).await,
        };
        if let Ok(Answer::Listing(listing)) = &answer {
            *self.last.lock().await = Some(listing.clone());
        }
        answer
    }
}
