//! Executes the requests of the lease protocol as calls to etcd.

use super::call_error::{CallErrorKind, is_answer, is_no_lease};
use super::connection::{Connection, Connections};
use super::error::EtcdError;
use super::options::EtcdOptions;
use crate::manager::Counters;
use crate::protocol::drive::Registry;
use crate::protocol::registry::{Answer, Compare, Entry, Listing, Request, TTL, Write, key_text};
use crate::wire::VALUE_LIMIT;
use async_trait::async_trait;
use etcd_client::{
    CompareOp, GetOptions, KeyValue, LeaseTimeToLiveOptions, LeaseTimeToLiveResponse, PutOptions,
    ResponseHeader, Txn, TxnOp, TxnOpResponse,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use types::Problem;

/// After this time without a reply, a request fails.
const DEADLINE: Duration = Duration::from_secs(5);
const LIST_DEADLINE: Duration = Duration::from_secs(20);
/// Minimum remaining time of an etcd lease that flanneld reuses.
const ENOUGH: Duration = Duration::from_secs(60);
/// Maximum number of keys per page of a list. The client halves it while a page exceeds [`PAGE_LIMIT`], and doubles it after a page of less than a
/// quarter of this limit.
const PAGE: i64 = 5_000;
/// In bytes, of a page with several keys.
const PAGE_LIMIT: usize = 4 << 20;
/// In bytes, of any other reply. A server can allow values of many megabytes.
pub(super) const ANSWER_LIMIT: usize = 64 << 20;

pub struct EtcdRegistry {
    pub connections: Connections,
    pub counters: Arc<Counters>,
    page: AtomicI64,
}

impl EtcdRegistry {
    /// It connects on the first request.
    #[must_use]
    pub fn new(options: EtcdOptions) -> Self {
        Self {
            connections: Connections::new(options),
            counters: Arc::default(),
            page: AtomicI64::new(PAGE),
        }
    }

    /// The connection in use, or a new one. Without any, etcd is unavailable.
    pub(super) async fn connected(&self) -> Result<Connection, EtcdError> {
        let connected = self.connections.get().await;
        if let Err(why) = &connected {
            self.counters.failed();
            // A node serves its pods through an outage. The age of the watch decides when it is not ready.
            self.counters.set_unavailable(Problem::of(why), false);
        }
        connected
    }

    /// An empty `key` gives the prefix of all leases.
    pub fn key(&self, key: &str) -> String {
        format!("{}/subnets/{key}", self.connections.options().prefix)
    }

    /// Converts a key below the prefix of all leases. Of a value that is too long for a lease, the entry keeps only as much as shows that.
    pub(super) fn entry(&self, kv: &KeyValue) -> Option<Entry> {
        let root = self.key("");
        let key = key_text(kv.key().strip_prefix(root.as_bytes())?);
        let value = kv.value();
        Some(Entry {
            key,
            value: value.get(..=VALUE_LIMIT).unwrap_or(value).into(),
            created: kv.create_revision(),
            modified: kv.mod_revision(),
            lease: kv.lease(),
        })
    }

    /// `name` is below the prefix, such as that of the network configuration.
    pub async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, EtcdError> {
        self.counters.call("range");
        let connection = self.connected().await?;
        let key = format!("{}/{name}", self.connections.options().prefix);
        let mut kv = connection.client.kv_client();
        let response = self.within(&connection, DEADLINE, &key, kv.get(key.as_str(), None)).await?;
        self.judge(&connection, response.header()).await?;
        Ok(response.kvs().first().map(|kv| kv.value().to_vec()))
    }

    /// The store's current revision.
    pub async fn revision(&self) -> Result<i64, EtcdError> {
        self.counters.call("range");
        let connection = self.connected().await?;
        let mut kv = connection.client.kv_client();
        let key = self.key("");
        let response = self.within(&connection, DEADLINE, &key, kv.get(key.as_str(), None)).await?;
        Ok(response.header().map_or(0, ResponseHeader::revision))
    }

    /// Lists all leases at one revision, page by page. Fails if etcd compacted the revision between two pages.
    pub async fn list(&self) -> Result<Listing, EtcdError> {
        let connection = self.connected().await?;
        let root = self.key("");
        let end = range_end(root.as_bytes());
        let mut listing = Listing::default();
        let mut from = root.clone().into_bytes();
        loop {
            let page = self.page.load(Ordering::Relaxed);
            let limit = if page > 1 { PAGE_LIMIT } else { ANSWER_LIMIT };
            let mut kv = connection.client.kv_client().max_decoding_message_size(limit);
            let mut options = GetOptions::new().with_range(end.clone()).with_limit(page);
            if listing.revision > 0 {
                options = options.with_revision(listing.revision);
            }
            self.counters.call("range");
            let response = match self
                .within(&connection, LIST_DEADLINE, &root, kv.get(from.clone(), Some(options)))
                .await
            {
                Ok(response) => response,
                Err(failure) if failure.has(|kind| kind == CallErrorKind::TooLarge) && page > 1 => {
                    self.page.store(page / 2, Ordering::Relaxed);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            self.judge(&connection, response.header()).await?;
            if listing.revision == 0 {
                listing.revision = response.header().map_or(0, ResponseHeader::revision);
            }
            let bytes: usize = response.kvs().iter().map(|kv| kv.value().len()).sum();
            if bytes < PAGE_LIMIT / 4 {
                self.page.store((page * 2).min(PAGE), Ordering::Relaxed);
            }
            listing.entries.extend(response.kvs().iter().filter_map(|kv| self.entry(kv)));
            match response.kvs().last() {
                Some(last) if response.more() => {
                    from = last.key().to_vec();
                    from.push(0);
                }
                _ => return Ok(listing),
            }
        }
    }

    async fn txn(
        &self,
        compare: &[Compare],
        write: &[Write],
        key: &str,
    ) -> Result<Answer, EtcdError> {
        self.counters.call("txn");
        let connection = self.connected().await?;
        let when: Vec<_> = compare.iter().filter_map(|compare| self.compare(compare)).collect();
        let then: Vec<_> = write.iter().map(|write| self.write(write)).collect();
        let txn = Txn::new().when(when).and_then(then).or_else([TxnOp::get(self.key(key), None)]);
        let mut kv = connection.client.kv_client().max_decoding_message_size(ANSWER_LIMIT);
        let response = self.within(&connection, DEADLINE, key, kv.txn(txn)).await?;
        self.judge(&connection, response.header()).await?;
        let present = response.op_responses().into_iter().find_map(|op| match op {
            TxnOpResponse::Get(get) => get.kvs().first().and_then(|kv| self.entry(kv)),
            _ => None,
        });
        let revision = response.header().map_or(0, ResponseHeader::revision);
        Ok(Answer::Txn { done: response.succeeded(), revision, present })
    }

    fn compare(&self, compare: &Compare) -> Option<etcd_client::Compare> {
        use etcd_client::Compare as Etcd;
        Some(match compare {
            Compare::Unchanged { key, modified } => {
                Etcd::mod_revision(self.key(key), CompareOp::Equal, *modified)
            }
            Compare::Holds { key, value } => {
                Etcd::value(self.key(key), CompareOp::Equal, value.as_str())
            }
            Compare::HangsOn { key, lease } => Etcd::lease(self.key(key), CompareOp::Equal, *lease),
            Compare::NoneUnder(prefix) => {
                Etcd::create_revision(self.key(prefix), CompareOp::Equal, 0).with_prefix()
            }
            // etcd's revisions are in the order of its writes.
            Compare::NoneElseAt { .. } => return None,
        })
    }

    fn write(&self, write: &Write) -> TxnOp {
        match write {
            Write::Put { key, value, lease } => TxnOp::put(
                self.key(key),
                value.as_str(),
                Some(PutOptions::new().with_lease(*lease)),
            ),
            Write::Delete { key } => TxnOp::delete(self.key(key), None),
        }
    }

    async fn time_to_live(
        &self,
        lease: i64,
        options: Option<LeaseTimeToLiveOptions>,
    ) -> Result<LeaseTimeToLiveResponse, EtcdError> {
        self.counters.call("lease-ttl");
        let connection = self.connected().await?;
        let mut client = connection.client.lease_client();
        let answer = client.time_to_live(lease, options);
        self.within(&connection, DEADLINE, "lease", answer).await
    }

    async fn last_seen(&self, lease: i64) -> Result<Answer, EtcdError> {
        if lease == 0 {
            return Ok(Answer::LastSeen(None));
        }
        let response = self.time_to_live(lease, None).await?;
        let (ttl, granted) = (response.ttl(), response.granted_ttl());
        let ago = (ttl > 0)
            .then(|| Duration::from_secs(u64::try_from(granted.saturating_sub(ttl)).unwrap_or(0)));
        Ok(Answer::LastSeen(ago))
    }

    /// True if an etcd lease has flanneld's time to live and lasts long enough for reuse. One with another time to live may expire between two
    /// renewals.
    async fn inherit(&self, lease: i64) -> Result<Answer, EtcdError> {
        let response = self.time_to_live(lease, None).await?;
        let ours = u64::try_from(response.granted_ttl()) == Ok(TTL.as_secs());
        Ok(Answer::Alive(
            ours && u64::try_from(response.ttl()).is_ok_and(|left| left > ENOUGH.as_secs()),
        ))
    }

    /// Does not revoke a lease with attached keys, because that would delete them.
    async fn revoke(&self, lease: i64) -> Result<Answer, EtcdError> {
        let keys = LeaseTimeToLiveOptions::new().with_keys();
        let response = self.time_to_live(lease, Some(keys)).await?;
        if response.keys().is_empty() {
            self.counters.call("lease-revoke");
            let connection = self.connected().await?;
            let mut client = connection.client.lease_client();
            self.within(&connection, DEADLINE, "lease", client.revoke(lease)).await?;
        }
        Ok(Answer::Revoked)
    }

    async fn keep_alive(&self, lease: i64) -> Result<Answer, EtcdError> {
        if lease == 0 {
            return Ok(Answer::Alive(true));
        }
        self.counters.call("lease-keepalive");
        let connection = self.connected().await?;
        let mut client = connection.client.lease_client();
        let answer = async {
            match client.keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(error) if is_no_lease(&error) => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.within(&connection, DEADLINE, "lease", answer).await.map(Answer::Alive)
    }

    /// After a transport failure, it drops the connection.
    async fn within<T>(
        &self,
        connection: &Connection,
        deadline: Duration,
        key: &str,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, EtcdError> {
        let outcome = async {
            match connection.until_cut(tokio::time::timeout(deadline, call)).await? {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(error)) => {
                    if !is_answer(&error) {
                        self.connections.leave(connection.number).await;
                    }
                    Err(EtcdError::Refused(
                        connection.endpoint.clone(),
                        self.connections.explain(key, &error),
                    ))
                }
                Err(_) => {
                    self.connections.leave(connection.number).await;
                    Err(EtcdError::NoAnswer(connection.endpoint.clone(), deadline))
                }
            }
        };
        let outcome = self.counters.timed(outcome).await;
        if outcome.is_ok() {
            self.counters.heard();
            self.counters.set_available();
        }
        outcome
    }

    async fn judge(
        &self,
        connection: &Connection,
        header: Option<&ResponseHeader>,
    ) -> Result<(), EtcdError> {
        match header {
            Some(header) => self.connections.recognise(connection, header.cluster_id()).await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Registry for EtcdRegistry {
    async fn request(&self, request: Request) -> Result<Answer, Problem> {
        Ok(match self.attempt(request.clone()).await {
            // etcd refused the request before executing it, and the client dropped the connection. The next connection logs in as etcd requires.
            Err(EtcdError::Refused(_, why))
                if self.connections.options().user.is_some()
                    && why.kind().is_some_and(CallErrorKind::of_log_in) =>
            {
                self.attempt(request).await?
            }
            answer => answer?,
        })
    }
}

impl EtcdRegistry {
    async fn attempt(&self, request: Request) -> Result<Answer, EtcdError> {
        match request {
            Request::List => self.list().await.map(Answer::Listing),
            Request::Grant => {
                self.counters.call("lease-grant");
                let connection = self.connected().await?;
                let mut client = connection.client.lease_client();
                let ttl = i64::try_from(TTL.as_secs()).unwrap_or(i64::MAX);
                let response =
                    self.within(&connection, DEADLINE, "lease", client.grant(ttl, None)).await?;
                Ok(Answer::Granted(response.id()))
            }
            Request::LastSeen { lease, .. } => self.last_seen(lease).await,
            Request::Txn { compare, write, key } => self.txn(&compare, &write, &key).await,
            Request::KeepAlive { lease, .. } => self.keep_alive(lease).await,
            Request::Inherit { lease } => Box::pin(self.inherit(lease)).await,
            Request::Revoke { lease } => self.revoke(lease).await,
        }
    }
}

/// The exclusive end of the key range that contains all keys with a prefix.
pub(super) fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
