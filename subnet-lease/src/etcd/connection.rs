//! One connection to one endpoint at a time; if it fails, the next one goes to the next endpoint.
//!
//! A connection is dropped when it does not answer, leads to another cluster, or the TLS files on disk have changed. HTTP/2 pings detect dead
//! connections; etcd refuses pings on connections without a stream, so they are sent only beside a request or a watch.

use super::cluster::{Judgement, Recognition};
use super::dial::{CONNECT, Dialed, Target, dial, speaks_tls};
use super::errors;
use super::options::EtcdOptions;
use super::tls::Tls;
use crate::protocol::registry::Unanswered;
use crate::reason::{Kind, Reason};
use etcd_client::{Channel, Client, ConnectOptions, ResponseHeader};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex as Lock, PoisonError};
use std::time::SystemTime;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A connection in use.
#[derive(Clone)]
pub struct Connection {
    /// The client on it.
    pub client: Client,
    /// The endpoint.
    pub endpoint: String,
    /// A serial number: a failure on an older connection does not count against this one.
    pub number: u64,
    /// Ends every wait on it once its answers can no longer reach this host.
    pub cut: CancellationToken,
    /// Ends the streams on it when it is to be replaced; requests may still be answered. Cancelled together with `cut`.
    pub outdated: CancellationToken,
    /// Its local address; none for a unix socket.
    local: Option<IpAddr>,
}

impl Connection {
    /// Waits for an answer as long as the connection can deliver one.
    ///
    /// # Errors
    /// Its local address is gone.
    pub fn until_cut<'a, T: 'a>(&'a self, answer: impl Future<Output = T> + 'a) -> impl Future<Output = Result<T, Unanswered>> + 'a {
        // The futures of etcd's client are large, and this is awaited inside of many others.
        let answer = Box::pin(answer);
        async move {
            self.cut.run_until_cancelled(answer).await.ok_or_else(|| {
                let text = format!("the connection to etcd at {} was closed: this host no longer has its local address", self.endpoint);
                Unanswered(Reason::new(Kind::Unreachable, text))
            })
        }
    }
}

/// The current connection, and what is known of the cluster.
pub struct Connections {
    options: EtcdOptions,
    present: Mutex<Present>,
    /// The connection in use, for callers that cannot wait for a new one; and a signal that this host's addresses changed.
    in_use: Lock<Option<Connection>>,
    moves: watch::Sender<u64>,
    /// How often the connection was renewed: one that was being made meanwhile is outdated.
    renewals: AtomicU64,
}

struct Present {
    connection: Option<Connection>,
    next: usize,
    number: u64,
    stamp: Vec<Option<SystemTime>>,
    recognition: Recognition,
}

impl Connections {
    /// Nothing is connected yet.
    pub fn new(options: EtcdOptions) -> Self {
        let recognition = Recognition::new(options.endpoints.len());
        let present = Present { connection: None, next: 0, number: 0, stamp: Vec::new(), recognition };
        Self { options, present: Mutex::new(present), in_use: Lock::default(), moves: watch::Sender::new(0), renewals: AtomicU64::new(0) }
    }

    /// How etcd is reached.
    pub fn options(&self) -> &EtcdOptions {
        &self.options
    }

    /// The current connection, or a new one to the next endpoint that answers and belongs to the right cluster.
    ///
    /// # Errors
    /// Names every endpoint and its error.
    pub async fn get(&self) -> Result<Connection, Unanswered> {
        let mut present = self.present.lock().await;
        let stamp = self.stamp();
        if let Some(connection) = &present.connection
            && present.stamp == stamp
            && !connection.outdated.is_cancelled()
        {
            return Ok(connection.clone());
        }
        let (mut moves, renewals) = (self.moves.subscribe(), self.renewals.load(Ordering::SeqCst));
        let endpoints = &self.options.endpoints;
        let mut complaints = BTreeMap::new();
        for _ in 0..endpoints.len() {
            let at = present.next % endpoints.len();
            let Some(endpoint) = endpoints.get(at) else { break };
            let connected = tokio::select! {
                connected = Box::pin(self.connect(at, endpoint, &mut present.recognition)) => connected,
                // What went out from an address that is gone is not waited for.
                _ = moves.changed() => Err(Reason::new(Kind::Unreachable, "this host's addresses changed meanwhile")),
            };
            match connected {
                Ok((client, local)) => {
                    present.number += 1;
                    let (cut, outdated) = (CancellationToken::new(), CancellationToken::new());
                    let connection = Connection { client, endpoint: endpoint.clone(), number: present.number, cut, outdated, local };
                    present.connection = Some(connection.clone());
                    let former = self.in_use.lock().unwrap_or_else(PoisonError::into_inner).replace(connection.clone());
                    // Its streams move here: there is one connection, to which all that is told of connections applies.
                    former.iter().for_each(|former| former.outdated.cancel());
                    present.stamp = stamp;
                    if self.renewals.load(Ordering::SeqCst) != renewals || moves.has_changed().unwrap_or(false) {
                        connection.outdated.cancel();
                    }
                    return Ok(connection);
                }
                Err(complaint) => complaints.insert(at, complaint),
            };
            present.next += 1;
        }
        // In the order of the configuration, wherever this round began.
        let texts: Vec<String> = complaints.iter().map(|(at, why)| format!("{}: {why}", endpoints.get(*at).map_or("", String::as_str))).collect();
        let kinds = complaints.into_values().map(|why| why.kind).collect();
        Err(Unanswered(Reason::new(Kind::Endpoints(kinds), format!("cannot reach etcd at {}", texts.join("; ")))))
    }

    /// Drops a connection that failed; the next one goes to the next endpoint.
    pub async fn leave(&self, number: u64) {
        let mut present = self.present.lock().await;
        if present.connection.as_ref().is_some_and(|connection| connection.number == number) {
            present.connection = None;
            present.next += 1;
        }
    }

    /// Drops the connection in use and its streams; the next one goes to the same endpoint, with the present TLS files.
    pub fn renew(&self) {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        if let Some(connection) = &*self.in_use.lock().unwrap_or_else(PoisonError::into_inner) {
            connection.outdated.cancel();
        }
    }

    /// Reports this host's current addresses: a connection from another address is dropped at once, even while it is being set up.
    pub fn readdressed(&self, addresses: &[IpAddr]) {
        let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(connection) = in_use
            && let Some(local) = connection.local
            && is_lost(local, addresses)
            && !connection.cut.is_cancelled()
        {
            tracing::info!("the connection to etcd at {} is replaced: this host no longer has its local address {local}", connection.endpoint);
            connection.cut.cancel();
            connection.outdated.cancel();
        }
        self.moves.send_modify(|count| *count += 1);
    }

    /// Returns when this host's addresses change.
    pub async fn moved(&self) {
        let _ = self.moves.subscribe().changed().await;
    }

    /// Checks the cluster id of an answer: a proxy may lead one connection to several clusters.
    ///
    /// # Errors
    /// It is another cluster than the right one, while other endpoints may still lead there.
    pub async fn recognise(&self, connection: &Connection, cluster: u64) -> Result<(), Unanswered> {
        if cluster == 0 {
            // etcd's own proxy leaves it out of some answers.
            return Ok(());
        }
        let mut present = self.present.lock().await;
        let Some(at) = self.options.endpoints.iter().position(|endpoint| *endpoint == connection.endpoint) else { return Ok(()) };
        let judged = judge(&mut present.recognition, at, cluster);
        if judged.is_err() && present.connection.as_ref().is_some_and(|present| present.number == connection.number) {
            present.connection = None;
            present.next += 1;
        }
        judged.map_err(|why| Unanswered(Reason { text: format!("the endpoint {}: {why}", connection.endpoint), kind: why.kind }))
    }

    /// When the TLS files were changed last.
    fn stamp(&self) -> Vec<Option<SystemTime>> {
        let identity = self.options.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.options.ca.iter().chain(identity).map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok()).collect()
    }

    /// A connection to that endpoint: asked for its cluster before anything else, and logged in where etcd wants that.
    async fn connect(&self, at: usize, endpoint: &str, recognition: &mut Recognition) -> Result<(Client, Option<IpAddr>), Reason> {
        let target = Target::parse(endpoint, self.options.ca.is_some() || self.options.identity.is_some())?;
        let tls = if target.tls() { Some(Tls::read(&self.options).await?) } else { None };
        let dialed = dial(&target, tls.as_ref()).await?;
        let options = ConnectOptions::new().with_require_leader(true);
        let nobody = client(&dialed, options.clone()).await?;
        let cluster = match timeout(CONNECT, nobody.maintenance_client().status()).await {
            Ok(Ok(status)) => status.header().map(ResponseHeader::cluster_id),
            // A refusal is an answer by etcd: a logged-in user may be told more.
            Ok(Err(error)) if !matches!(errors::kind(&error), Kind::Unreachable | Kind::Unavailable) => None,
            Ok(Err(error)) => return Err(why_no_answer(&error, &dialed, &target, tls.as_ref()).await),
            Err(_) => {
                let told = dialed.complaint().zip(tls.as_ref()).map(|(complaint, tls)| tls.explain(&complaint));
                return Err(told.unwrap_or_else(|| Reason::new(Kind::Unreachable, format!("no answer within {CONNECT:?}"))));
            }
        };
        if let Some(cluster) = cluster {
            // Before the log-in: another cluster is told no password.
            judge(recognition, at, cluster)?;
        }
        let client = match &self.options.user {
            None => nobody,
            Some((name, password)) => self.log_in(&dialed, options.with_user(name, password).with_auto_token_refresh(true), nobody).await?,
        };
        if cluster.is_none() {
            judge(recognition, at, self.cluster_of(&client).await?)?;
        }
        Ok((client, dialed.local))
    }

    /// Logs in as the configured user, or not at all if authentication is disabled in etcd.
    async fn log_in(&self, dialed: &Dialed, options: ConnectOptions, nobody: Client) -> Result<Client, Reason> {
        let logged_in = Client::from_channel(Channel::Tonic(dialed.channel.clone()), Some(options));
        let name = self.options.user.as_ref().map_or("", |(name, _)| name);
        match timeout(CONNECT * 2, logged_in).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => match errors::kind(&error) {
                Kind::NoAuthentication => Ok(nobody),
                kind => Err(Reason::new(kind, format!("log-in as user {name} failed: {}", errors::words(&error)))),
            },
            Err(_) => Err(Reason::new(Kind::Unreachable, format!("no answer to the log-in as user {name} within {:?}", CONNECT * 2))),
        }
    }

    /// The cluster by a read of what every role may read, where etcd (or what stands before it) does not tell its status.
    async fn cluster_of(&self, client: &Client) -> Result<u64, Reason> {
        let key = format!("{}/config", self.options.prefix);
        match timeout(CONNECT, client.kv_client().get(key.as_str(), None)).await {
            Ok(Ok(answer)) => Ok(answer.header().map_or(0, ResponseHeader::cluster_id)),
            Ok(Err(error)) => Err(self.explain(&key, &error)),
            Err(_) => Err(Reason::new(Kind::Unreachable, format!("no answer within {CONNECT:?}"))),
        }
    }

    /// A refusal by etcd, with the remedy.
    pub fn explain(&self, key: &str, error: &etcd_client::Error) -> Reason {
        let kind = errors::kind(error);
        let hint = match kind {
            Kind::Permission => {
                let user = self.options.user.as_ref().map_or("the client certificate's user", |(name, _)| name);
                format!(" ({user} needs read on {0}/config and readwrite on {0}/subnets/)", self.options.prefix)
            }
            Kind::NoUser if self.options.user.is_none() => " (this etcd wants a user: --etcd-username and --etcd-password)".to_owned(),
            Kind::NoSpace => " (etcd's NOSPACE alarm: compact, defragment and disarm it)".to_owned(),
            _ => String::new(),
        };
        Reason::new(kind, format!("refused {key}: {}{hint}", errors::words(error)))
    }
}

/// Whether this host no longer has an address. Loopback's stay, and link-local ones are not among what is told.
fn is_lost(local: IpAddr, addresses: &[IpAddr]) -> bool {
    let link_local = match local {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !local.is_loopback() && !link_local && !addresses.contains(&local)
}

fn judge(recognition: &mut Recognition, at: usize, cluster: u64) -> Result<(), Reason> {
    match recognition.answer(at, cluster) {
        Judgement::Right => Ok(()),
        Judgement::Moved(before) => {
            tracing::warn!("every endpoint now belongs to the etcd cluster {cluster:x} instead of {before:x}, which is used from now on");
            Ok(())
        }
        Judgement::Foreign(known) => Err(Reason::new(
            Kind::ForeignCluster,
            format!(
                "it belongs to another etcd cluster ({cluster:x}) than the one in use ({known:x}) and is not used: correct --etcd-endpoints; if etcd was rebuilt and an endpoint \
                 never answers, restart flanneld"
            ),
        )),
    }
}

async fn client(dialed: &Dialed, options: ConnectOptions) -> Result<Client, Reason> {
    let made = Client::from_channel(Channel::Tonic(dialed.channel.clone()), Some(options)).await;
    made.map_err(|error| Reason::new(errors::kind(&error), errors::words(&error)))
}

/// Why a connection ended before it brought an answer.
async fn why_no_answer(error: &etcd_client::Error, dialed: &Dialed, target: &Target, tls: Option<&Tls>) -> Reason {
    let kind = errors::kind(error);
    match (dialed.complaint(), tls) {
        _ if kind == Kind::Unavailable => {}
        (Some(complaint), Some(tls)) => return tls.explain(&complaint),
        (None, Some(tls)) => return tls.silent_end(),
        (_, None) if speaks_tls(target).await => {
            return Reason::new(
                Kind::OnlyTls,
                "etcd speaks TLS there: write https:// in --etcd-endpoints, and name its authority with --etcd-cafile",
            );
        }
        _ => {}
    }
    Reason::new(kind, errors::words(error))
}
