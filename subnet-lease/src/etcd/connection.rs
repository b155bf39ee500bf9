//! Keeps one connection to one etcd endpoint at a time. After a failure, the client connects to the next endpoint.
//!
//! The client drops a connection if the endpoint does not reply or belongs to another cluster, or if the TLS files on disk have changed. HTTP/2 pings
//! detect dead connections. They are sent only during a request or a watch, because etcd refuses pings on connections without a stream.

use super::call_error::{CallError, CallErrorKind};
use super::cluster::{Judgement, Recognition};
use super::dial::{CONNECT, Dialed, Target, dial, speaks_tls};
use super::error::{Asked, EndpointError, EtcdError, Lack};
use super::options::EtcdOptions;
use super::tls::Tls;
use super::tls::error::TlsError;
use etcd_client::{Channel, Client, ConnectOptions, ResponseHeader};
use parking_lot::Mutex as Lock;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A connection to one endpoint, after the log-in.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    /// URL as configured.
    pub endpoint: String,
    /// Serial number, which distinguishes a failure on an older connection from one on this connection.
    pub number: u64,
    /// Cancels every wait on this connection when replies can no longer reach this host.
    pub cut: CancellationToken,
    /// Ends the streams on this connection before the client replaces it. Pending requests may still get replies. `cut` also cancels this token.
    pub outdated: CancellationToken,
    /// `None` for a unix socket.
    local: Option<IpAddr>,
}

impl Connection {
    /// Waits for a reply, but fails when this host no longer has the connection's local address.
    pub(crate) fn until_cut<'a, T: 'a>(
        &'a self,
        answer: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Result<T, EtcdError>> + 'a {
        // The futures of etcd's client are large, and this one is awaited inside many others.
        let answer = Box::pin(answer);
        async move {
            self.cut
                .run_until_cancelled(answer)
                .await
                .ok_or_else(|| EtcdError::Cut(self.endpoint.clone()))
        }
    }
}

/// The current connection, and the clusters that the endpoints have reported.
pub struct Connections {
    options: EtcdOptions,
    present: Mutex<Present>,
    /// For callers that cannot wait for a new connection.
    in_use: Lock<Option<Connection>>,
    moves: watch::Sender<u64>,
    /// Number of calls of `renew`. A connection that was being set up during such a call is outdated.
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
    /// It connects on the first request.
    #[must_use]
    pub fn new(options: EtcdOptions) -> Self {
        let recognition = Recognition::new(options.endpoints.len());
        let present =
            Present { connection: None, next: 0, number: 0, stamp: Vec::new(), recognition };
        Self {
            options,
            present: Mutex::new(present),
            in_use: Lock::default(),
            moves: watch::Sender::new(0),
            renewals: AtomicU64::new(0),
        }
    }

    pub fn options(&self) -> &EtcdOptions {
        &self.options
    }

    /// The current connection, or a new one to the next endpoint that replies and belongs to the cluster in use. The error names every endpoint with
    /// its error.
    pub async fn get(&self) -> Result<Connection, EtcdError> {
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
            let Some(endpoint) = endpoints.get(at) else {
                break;
            };
            let connected = tokio::select! {
                connected = Box::pin(self.connect(at, endpoint, &mut present.recognition)) => connected,
                // A request from an address that is gone gets no reply, so do not wait for it.
                _ = moves.changed() => Err(EndpointError::Readdressed),
            };
            match connected {
                Ok((client, local)) => {
                    present.number += 1;
                    let (cut, outdated) = (CancellationToken::new(), CancellationToken::new());
                    let connection = Connection {
                        client,
                        endpoint: endpoint.clone(),
                        number: present.number,
                        cut,
                        outdated,
                        local,
                    };
                    present.connection = Some(connection.clone());
                    let former = self.in_use.lock().replace(connection.clone());
                    // Move the streams of the former connection to this one. There is only one connection, so that changes of addresses and TLS files apply
                    // to all streams.
                    former.iter().for_each(|former| former.outdated.cancel());
                    present.stamp = stamp;
                    if self.renewals.load(Ordering::SeqCst) != renewals
                        || moves.has_changed().unwrap_or(false)
                    {
                        connection.outdated.cancel();
                    }
                    return Ok(connection);
                }
                Err(complaint) => complaints.insert(at, complaint),
            };
            present.next += 1;
        }
        // In the configured order, wherever this round began.
        let named = |(at, why): (usize, EndpointError)| {
            (endpoints.get(at).cloned().unwrap_or_default(), why)
        };
        Err(EtcdError::Endpoints(complaints.into_iter().map(named).collect()))
    }

    /// Drops a connection that failed. The next one goes to the next endpoint.
    pub async fn leave(&self, number: u64) {
        let mut present = self.present.lock().await;
        if present.connection.as_ref().is_some_and(|connection| connection.number == number) {
            present.connection = None;
            present.next += 1;
        }
    }

    /// Drops the connection in use and its streams. The next one goes to the same endpoint, with the current TLS files.
    pub fn renew(&self) {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        if let Some(connection) = &*self.in_use.lock() {
            connection.outdated.cancel();
        }
    }

    /// Drops a connection whose local address this host no longer has, even while it is being set up.
    pub fn readdressed(&self, addresses: &[IpAddr]) {
        let in_use = self.in_use.lock().clone();
        if let Some(connection) = in_use
            && let Some(local) = connection.local
            && is_lost(local, addresses)
            && !connection.cut.is_cancelled()
        {
            tracing::info!(
                url = %connection.endpoint,
                address = %local,
                "replacing the connection to etcd: this host no longer has the connection's local address"
            );
            connection.cut.cancel();
            connection.outdated.cancel();
        }
        self.moves.send_modify(|count| *count += 1);
    }

    /// Waits until this host's addresses change.
    pub async fn moved(&self) {
        let _ = self.moves.subscribe().changed().await;
    }

    /// Checks the cluster id of a reply, because a proxy may lead one connection to several clusters. Fails for another id than that of the cluster
    /// in use, unless every endpoint has reported the new id.
    pub(crate) async fn recognise(
        &self,
        connection: &Connection,
        cluster: u64,
    ) -> Result<(), EtcdError> {
        if cluster == 0 {
            // etcd's own proxy omits the id in some replies.
            return Ok(());
        }
        let mut present = self.present.lock().await;
        let Some(at) =
            self.options.endpoints.iter().position(|endpoint| *endpoint == connection.endpoint)
        else {
            return Ok(());
        };
        let judged = judge(&mut present.recognition, at, cluster);
        if judged.is_err()
            && present
                .connection
                .as_ref()
                .is_some_and(|present| present.number == connection.number)
        {
            present.connection = None;
            present.next += 1;
        }
        judged.map_err(|why| EtcdError::Foreign(connection.endpoint.clone(), why))
    }

    /// Modification times of the TLS files.
    fn stamp(&self) -> Vec<Option<SystemTime>> {
        let identity = self.options.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.options
            .ca
            .iter()
            .chain(identity)
            .map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok())
            .collect()
    }

    /// First requests the endpoint's cluster id, then logs in if etcd requires a user.
    async fn connect(
        &self,
        at: usize,
        endpoint: &str,
        recognition: &mut Recognition,
    ) -> Result<(Client, Option<IpAddr>), EndpointError> {
        let target =
            Target::parse(endpoint, self.options.ca.is_some() || self.options.identity.is_some())?;
        let tls = if target.tls() { Some(Tls::read(&self.options).await?) } else { None };
        let dialed = dial(&target, tls.as_ref()).await?;
        let options = ConnectOptions::new().with_require_leader(true);
        let nobody = client(&dialed, options.clone()).await?;
        let cluster = match timeout(CONNECT, nobody.maintenance_client().status()).await {
            Ok(Ok(status)) => status.header().map(ResponseHeader::cluster_id),
            // A refusal is a reply by etcd. A logged-in user may get the cluster id.
            Ok(Err(error)) => match CallError::from(&error) {
                refusal
                    if matches!(refusal.kind, CallErrorKind::Unreachable(_))
                        || refusal.kind.is_unavailable() =>
                {
                    return Err(why_no_answer(refusal, &dialed, &target, tls.as_ref()).await);
                }
                _ => None,
            },
            Err(_) => {
                let trouble = dialed
                    .complaint()
                    .zip(tls.as_ref())
                    .map(|(complaint, tls)| tls.explain(&complaint));
                return Err(trouble.map_or(
                    EndpointError::NoAnswer(Asked::Anything, CONNECT),
                    EndpointError::Tls,
                ));
            }
        };
        if let Some(cluster) = cluster {
            // Check before the log-in, so that another cluster does not receive the password.
            judge(recognition, at, cluster)?;
        }
        let client = match &self.options.user {
            None => nobody,
            Some((name, password)) => {
                self.log_in(
                    &dialed,
                    options.with_user(name, password).with_auto_token_refresh(true),
                    nobody,
                )
                .await?
            }
        };
        if cluster.is_none() {
            judge(recognition, at, self.cluster_of(&client).await?)?;
        }
        Ok((client, dialed.local))
    }

    /// If authentication is disabled in etcd, it uses the client without a log-in.
    async fn log_in(
        &self,
        dialed: &Dialed,
        options: ConnectOptions,
        nobody: Client,
    ) -> Result<Client, EndpointError> {
        let logged_in = Client::from_channel(Channel::Tonic(dialed.channel.clone()), Some(options));
        let name = self.options.user.as_ref().map_or("", |(name, _)| name);
        match timeout(CONNECT * 2, logged_in).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => match CallError::from(&error) {
                CallError { kind: CallErrorKind::NoAuthentication, .. } => Ok(nobody),
                refusal => Err(EndpointError::LogIn(name.to_owned(), refusal)),
            },
            Err(_) => Err(EndpointError::NoAnswer(Asked::LogIn(name.to_owned()), CONNECT * 2)),
        }
    }

    /// Reads the cluster id from a key that every role may read. Needed if etcd, or a proxy in front of it, does not report the id in its status.
    async fn cluster_of(&self, client: &Client) -> Result<u64, EndpointError> {
        let key = format!("{}/config", self.options.prefix);
        match timeout(CONNECT, client.kv_client().get(key.as_str(), None)).await {
            Ok(Ok(answer)) => Ok(answer.header().map_or(0, ResponseHeader::cluster_id)),
            Ok(Err(error)) => Err(self.explain(&key, &error)),
            Err(_) => Err(EndpointError::NoAnswer(Asked::Anything, CONNECT)),
        }
    }

    /// Adds the remedy.
    pub fn explain(&self, key: &str, error: &etcd_client::Error) -> EndpointError {
        let refusal = CallError::from(error);
        let user = self.options.user.as_ref().map(|(name, _)| name.clone());
        let lack = match refusal.kind {
            CallErrorKind::Permission => Lack::Right { user, prefix: self.options.prefix.clone() },
            CallErrorKind::NoUser if user.is_none() => Lack::LogIn,
            CallErrorKind::NoSpace => Lack::Space,
            _ => Lack::Nothing,
        };
        EndpointError::Key { key: key.to_owned(), refusal, lack }
    }
}

/// False for loopback and link-local addresses, because `addresses` does not contain them.
fn is_lost(local: IpAddr, addresses: &[IpAddr]) -> bool {
    let link_local = match local {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !local.is_loopback() && !link_local && !addresses.contains(&local)
}

fn judge(recognition: &mut Recognition, at: usize, cluster: u64) -> Result<(), EndpointError> {
    match recognition.answer(at, cluster) {
        Judgement::Right => Ok(()),
        Judgement::Moved(before) => {
            tracing::warn!(
                from = %format_args!("{before:x}"),
                to = %format_args!("{cluster:x}"),
                "every endpoint now belongs to a new etcd cluster; using the new cluster from now on"
            );
            Ok(())
        }
        Judgement::Foreign(known) => Err(EndpointError::ForeignCluster { cluster, known }),
    }
}

async fn client(dialed: &Dialed, options: ConnectOptions) -> Result<Client, EndpointError> {
    let made = Client::from_channel(Channel::Tonic(dialed.channel.clone()), Some(options)).await;
    made.map_err(|error| CallError::from(&error).into())
}

/// Why a connection ended before it delivered a reply.
async fn why_no_answer(
    refusal: CallError,
    dialed: &Dialed,
    target: &Target,
    tls: Option<&Tls>,
) -> EndpointError {
    match (dialed.complaint(), tls) {
        _ if refusal.kind.is_unavailable() => refusal.into(),
        (Some(complaint), Some(tls)) => tls.explain(&complaint).into(),
        (None, Some(tls)) => tls.silent_end().into(),
        (_, None) if speaks_tls(target).await => TlsError::new(
            "etcd-speaks-tls",
            "etcd speaks TLS at this endpoint; write https:// in --etcd-endpoints, and name etcd's authority with --etcd-cafile",
        )
        .into(),
        _ => refusal.into(),
    }
}
