//! One connection to one endpoint at a time: made, judged, dropped and made anew at the next endpoint.
//!
//! An endpoint is left when it does not answer, belongs to another cluster than the others, or when the TLS files on disk
//! changed. HTTP/2 pings find dead connections; etcd refuses pings on connections without a stream, so they go only
//! beside a request or a watch.

use crate::protocol::registry::Failure;
use etcd_client::{Channel, Client, ConnectOptions};
use hyper_util::client::legacy::connect::HttpConnector;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Uri};
use tower::Service;

/// How etcd is reached.
#[derive(Clone, Default)]
pub struct EtcdOptions {
    /// Endpoints in order of preference: URLs, `host:port`, or `unix:` paths.
    pub endpoints: Vec<String>,
    /// Root of all keys, without a trailing slash.
    pub prefix: String,
    /// CA certificates; the system's where there is none.
    pub ca: Option<PathBuf>,
    /// Client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name and password.
    pub user: Option<(String, String)>,
}

impl std::fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdOptions").field("endpoints", &self.endpoints).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

const CONNECT: Duration = Duration::from_secs(3);
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// A connection in use.
#[derive(Clone)]
pub struct Connection {
    /// The client on it.
    pub client: Client,
    /// Where it goes.
    pub endpoint: String,
    /// Counts connections: what is told of an older one does not count against this one.
    pub number: u64,
    /// Ends what waits on it, once its answers cannot reach this host any more.
    pub cut: CancellationToken,
    /// The address of this host that it goes out from; none for a unix socket.
    local: Local,
}

/// The local address of a connection, noted when it is made.
type Local = Arc<Lock<Option<IpAddr>>>;

impl Connection {
    /// Waits on the connection for no longer than it can have an answer.
    ///
    /// # Errors
    /// Its local address is gone.
    pub fn until_cut<'a, T: 'a>(&'a self, answer: impl Future<Output = T> + 'a) -> impl Future<Output = Result<T, Failure>> + 'a {
        // The futures of etcd's client are large, and this is awaited inside of many others.
        let answer = Box::pin(answer);
        async move {
            let answer = self.cut.run_until_cancelled(answer).await;
            let gone = || format!("the connection to etcd at {} was left: the address of this host that it had is gone", self.endpoint);
            answer.ok_or_else(|| Failure(gone()))
        }
    }
}

/// The present connection, and what is known of the cluster.
pub struct Connections {
    options: EtcdOptions,
    present: Mutex<Present>,
    /// The connection in use, for whoever cannot wait until a new one is made; and a sign that this host's addresses changed.
    in_use: Lock<Option<Connection>>,
    moves: watch::Sender<u64>,
}

#[derive(Default)]
struct Present {
    connection: Option<Connection>,
    next: usize,
    number: u64,
    stamp: Vec<Option<SystemTime>>,
    cluster: Option<u64>,
    strangers: usize,
}

impl Connections {
    /// Nothing is connected yet.
    pub fn new(options: EtcdOptions) -> Self {
        Self { options, present: Mutex::new(Present::default()), in_use: Lock::default(), moves: watch::Sender::new(0) }
    }

    /// How etcd is reached.
    pub fn options(&self) -> &EtcdOptions {
        &self.options
    }

    /// The present connection, or a new one to the next endpoint that answers.
    ///
    /// # Errors
    /// Names every endpoint and what it said.
    pub async fn get(&self) -> Result<Connection, Failure> {
        let mut present = self.present.lock().await;
        let stamp = self.stamp();
        if let Some(connection) = &present.connection
            && present.stamp == stamp
            && !connection.cut.is_cancelled()
        {
            return Ok(connection.clone());
        }
        let mut moves = self.moves.subscribe();
        let mut complaints = Vec::new();
        for _ in 0..self.options.endpoints.len() {
            let Some(endpoint) = self.options.endpoints.get(present.next % self.options.endpoints.len()) else { break };
            let local = Local::default();
            let connected = tokio::select! {
                connected = self.connect(endpoint, &local) => connected,
                // What went out from an address that is gone is not waited for.
                _ = moves.changed() => Err("this host's addresses changed meanwhile".to_owned()),
            };
            match connected {
                Ok(client) => {
                    present.number += 1;
                    let connection = Connection { client, endpoint: endpoint.clone(), number: present.number, cut: CancellationToken::new(), local };
                    present.connection = Some(connection.clone());
                    *self.in_use.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
                    present.stamp = stamp;
                    return Ok(connection);
                }
                Err(complaint) => complaints.push(format!("{endpoint}: {complaint}")),
            }
            present.next += 1;
        }
        Err(Failure(format!("cannot reach etcd at {}", complaints.join("; "))))
    }

    /// Leaves a connection that proved bad; the next one goes to the next endpoint.
    pub async fn leave(&self, number: u64) {
        let mut present = self.present.lock().await;
        if present.connection.as_ref().is_some_and(|connection| connection.number == number) {
            present.connection = None;
            present.next += 1;
        }
    }

    /// This host has these addresses now: a connection from another one is left at once, whoever waits on it, and so is one that is being made.
    pub fn readdressed(&self, addresses: &[IpAddr]) {
        let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(connection) = in_use
            && let Some(local) = *connection.local.lock().unwrap_or_else(PoisonError::into_inner)
            && is_lost(local, addresses)
            && !connection.cut.is_cancelled()
        {
            tracing::info!("the connection to etcd at {} is made anew: this host no longer has {local}, from which it went out", connection.endpoint);
            connection.cut.cancel();
        }
        self.moves.send_modify(|count| *count += 1);
    }

    /// Returns when this host's addresses change.
    pub async fn moved(&self) {
        let _ = self.moves.subscribe().changed().await;
    }

    /// Judges the cluster that an answer names.
    ///
    /// # Errors
    /// It is another cluster than before, while other endpoints may still lead to the right one.
    pub async fn recognise(&self, connection: &Connection, cluster: u64) -> Result<(), Failure> {
        let mut present = self.present.lock().await;
        match present.cluster {
            Some(known) if known != cluster => {
                present.strangers += 1;
                if present.strangers >= self.options.endpoints.len() {
                    // Every endpoint is of the other cluster: etcd was set up anew.
                    present.cluster = Some(cluster);
                    present.strangers = 0;
                    return Ok(());
                }
                present.connection = None;
                present.next += 1;
                Err(Failure(format!(
                    "the endpoint {} belongs to another etcd cluster ({cluster:x}) than the others ({known:x}); it is not used: correct --etcd-endpoints",
                    connection.endpoint
                )))
            }
            Some(_) => {
                present.strangers = 0;
                Ok(())
            }
            None => {
                present.cluster = Some(cluster);
                Ok(())
            }
        }
    }

    /// When the TLS files were changed last.
    fn stamp(&self) -> Vec<Option<SystemTime>> {
        let identity = self.options.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.options.ca.iter().chain(identity).map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok()).collect()
    }

    async fn connect(&self, endpoint: &str, local: &Local) -> Result<Client, String> {
        let (url, tls) = url(endpoint, self.options.ca.is_some() || self.options.identity.is_some());
        let mut builder = Endpoint::from_shared(url).map_err(|error| format!("not a usable URL: {error}"))?;
        builder = builder.connect_timeout(CONNECT).http2_keep_alive_interval(PING.0).keep_alive_timeout(PING.1).tcp_nodelay(true);
        if tls {
            builder = builder.tls_config(self.tls().await?).map_err(|error| words(&error))?;
        }
        let is_path = endpoint.starts_with("unix:");
        let connecting = async { if is_path { builder.connect().await } else { builder.connect_with_connector(dial(local)).await } };
        let channel = tokio::time::timeout(CONNECT * 2, connecting).await.map_err(|_| format!("no connection within {CONNECT:?}"))?;
        let channel = channel.map_err(|error| words(&error))?;
        let mut options = ConnectOptions::new().with_require_leader(true);
        if let Some((name, password)) = &self.options.user {
            options = options.with_user(name, password).with_auto_token_refresh(true);
        }
        let client = Client::from_channel(Channel::Tonic(channel), Some(options));
        let client = tokio::time::timeout(CONNECT * 2, client).await.map_err(|_| "no answer to the log-in in time".to_owned())?;
        client.map_err(|error| match &self.options.user {
            Some((name, _)) => format!("log-in as user {name} failed: {error}"),
            None => error.to_string(),
        })
    }

    async fn tls(&self) -> Result<ClientTlsConfig, String> {
        let mut config = match &self.options.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificates(certificates(&file(ca).await?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((cert, key)) = &self.options.identity {
            config = config.identity(Identity::from_pem(file(cert).await?, file(key).await?));
        }
        Ok(config)
    }
}

/// Connects as tonic does, and notes the address from which it went out.
fn dial(
    local: &Local,
) -> impl Service<Uri, Response = <HttpConnector as Service<Uri>>::Response, Error = <HttpConnector as Service<Uri>>::Error, Future: Send> + Send + use<>
{
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    let local = local.clone();
    tower::service_fn(move |uri| {
        let (connecting, local) = (http.call(uri), local.clone());
        async move {
            let stream = connecting.await?;
            *local.lock().unwrap_or_else(PoisonError::into_inner) = stream.inner().local_addr().ok().map(|address| address.ip().to_canonical());
            Ok(stream)
        }
    })
}

/// Whether this host no longer has an address. Loopback's stay, and link-local ones are not among what is told.
fn is_lost(local: IpAddr, addresses: &[IpAddr]) -> bool {
    let link_local = match local {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !local.is_loopback() && !link_local && !addresses.contains(&local)
}

/// Each certificate of a PEM bundle.
fn certificates(bundle: &[u8]) -> Vec<Certificate> {
    const END: &str = "-----END CERTIFICATE-----";
    let text = String::from_utf8_lossy(bundle);
    text.split_inclusive(END).filter(|part| part.contains(END)).map(Certificate::from_pem).collect()
}

async fn file(path: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(path).await.map_err(|error| format!("cannot read the TLS file {}: {error}", path.display()))
}

/// The URL of an endpoint, and whether it is reached by TLS.
fn url(endpoint: &str, secure: bool) -> (String, bool) {
    if endpoint.starts_with("https://") {
        (endpoint.to_owned(), true)
    } else if endpoint.starts_with("http://") {
        (endpoint.to_owned(), false)
    } else if let Some(path) = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")) {
        (format!("unix:{path}"), false)
    } else if secure {
        (format!("https://{endpoint}"), true)
    } else {
        (format!("http://{endpoint}"), false)
    }
}

/// An error with its causes: tonic's own text says only "transport error".
pub fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
