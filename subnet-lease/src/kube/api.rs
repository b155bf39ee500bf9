//! Sends requests to the Kubernetes API, with one HTTP client at a time. After a failed connection or log-in, the credentials are read again for a
//! new client.

use super::error::{NoResponseError, store_detail};
use super::options::KubeOptions;
use super::request_error::{RequestError, Step};
use super::token::Token;
use crate::manager::{Counters, Error};
use crate::reason::with_causes;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ConfigExt};
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tower::util::BoxCloneService;
use tower::{BoxError, ServiceBuilder, ServiceExt};
use types::Problem;
use types::problem::StoreCause;

/// Without a reply to keepalive probes for this time, a connection ends. Only these probes detect a server that lost power.
const SILENCE: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum time until the head of a response arrives.
pub(super) const ANSWER: Duration = Duration::from_secs(15);
/// In bytes, of a response that the client reads as a whole.
pub(super) const BODY: usize = 32 << 20;
/// Mount path of a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

type Stack = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Label `kind` in `flannel_store_requests_total`.
    pub kind: &'static str,
    /// For messages, e.g. `list Nodes`.
    pub what: String,
    pub method: Method,
    /// With the query.
    pub path: String,
    /// Content type and content, if any.
    pub content: Option<(&'static str, Vec<u8>)>,
}

impl Call {
    pub(super) fn get(
        kind: &'static str,
        what: impl Into<String>,
        path: impl Into<String>,
    ) -> Self {
        Self { kind, what: what.into(), method: Method::GET, path: path.into(), content: None }
    }
}

pub(super) struct Api {
    options: KubeOptions,
    state: Mutex<ConnectionState>,
    pub counters: Arc<Counters>,
}

#[derive(Default)]
struct ConnectionState {
    connection: Option<Connection>,
    /// Index among the configured servers.
    at: usize,
    /// Number of connections so far. It ensures that several failures on one connection change the server only once.
    generation: u64,
}

#[derive(Clone)]
struct Connection {
    stack: Stack,
    /// For messages.
    server: String,
    token: Option<Arc<Token>>,
    generation: u64,
}

impl Api {
    /// It connects on the first request.
    pub(super) fn new(options: KubeOptions) -> Self {
        Self { options, state: Mutex::default(), counters: Arc::default() }
    }

    pub(super) fn options(&self) -> &KubeOptions {
        &self.options
    }

    /// Reads the credentials once, so that the daemon reports a mistake at the start. Fails with `Refused` for a mistake, and with `Unavailable` for
    /// missing files that may still appear.
    pub(super) async fn check(&self) -> Result<(), Error> {
        let (config, _) = self.config(0).await?;
        let server = shown(&config.cluster_url);
        if config.accept_invalid_certs {
            tracing::warn!(
                "the kubeconfig sets insecure-skip-tls-verify: flannel does not verify the identity of {server}"
            );
        }
        if config.cluster_url.scheme_str() == Some("http") {
            tracing::warn!(
                "{server} is plain HTTP: the connection is neither encrypted nor authenticated; use https:// unless a local proxy listens there"
            );
        }
        if let Some(variable) = ["HTTPS_PROXY", "https_proxy"]
            .into_iter()
            .find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
        {
            tracing::warn!(
                "flannel does not use the proxy of {variable} and connects to {server} directly"
            );
        }
        Ok(())
    }

    /// Leaves the body unread.
    pub(super) async fn send(&self, call: &Call) -> Result<Answer, RequestError> {
        self.counters.call(call.kind);
        let connection = self.connection().await?;
        let (server, generation) = (connection.server.clone(), connection.generation);
        let outcome = self.counters.timed(self.ask(connection, call)).await;
        if let Err(failure) = &outcome {
            if let Some(status) = failure.status {
                self.counters.call(label(status));
            }
            match failure.step(call.method == Method::GET) {
                Step::Stay => {}
                // Without another server, do not burden a busy one with another handshake.
                Step::NextServer if self.options.urls.len() < 2 => {}
                Step::NextServer | Step::Anew => self.give_up(generation),
            }
        }
        if outcome.is_ok() {
            self.counters.heard();
        }
        outcome.map(|body| Answer { body, server, what: call.what.clone(), generation })
    }

    /// Also reads the response, and fails if it is too large.
    pub(super) async fn read(&self, call: &Call) -> Result<String, RequestError> {
        let answer = self.send(call).await?;
        let (server, what, generation) =
            (answer.server.clone(), answer.what.clone(), answer.generation);
        let failure =
            match tokio::time::timeout(ANSWER, Limited::new(answer.body, BODY).collect()).await {
                Ok(Ok(body)) => return Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned()),
                Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                    return Err(RequestError::too_large(&server, &what, BODY));
                }
                Ok(Err(error)) => {
                    RequestError::unreachable(&server, &what, &NoResponseError::of(&*error))
                }
                Err(_) => {
                    RequestError::unreachable(&server, &what, &NoResponseError::Unfinished(ANSWER))
                }
            };
        self.give_up(generation);
        Err(failure)
    }

    /// The next request reconnects and reads the credentials again.
    pub(super) fn renew(&self) {
        self.state.lock().connection = None;
    }

    async fn ask(&self, connection: Connection, call: &Call) -> Result<Incoming, RequestError> {
        let Connection { stack, server, token, .. } = connection;
        let server = server.as_str();
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header(header::USER_AGENT, &self.options.user_agent);
        request = request.header(header::ACCEPT, "application/json");
        if let Some(token) = token {
            let value = token.header().await.map_err(|why| {
                let text = format!("cannot log in to the Kubernetes API at {server}: {why}");
                let detail = store_detail(StoreCause::User, None, server);
                RequestError::local(Problem { text, detail, ..why })
            })?;
            request = request.header(header::AUTHORIZATION, value);
        }
        let content = call.content.clone();
        if let Some((kind, _)) = &content {
            request = request.header(header::CONTENT_TYPE, *kind);
        }
        let body =
            content.map_or_else(Body::empty, |(_, content)| Body::from(Bytes::from(content)));
        let request = request
            .body(body)
            .map_err(|error| RequestError::nonsense(server, &call.what, error))?;
        let answer = match tokio::time::timeout(ANSWER, stack.oneshot(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                return Err(RequestError::unreachable(
                    server,
                    &call.what,
                    &NoResponseError::of(&*error),
                ));
            }
            Err(_) => {
                return Err(RequestError::unreachable(
                    server,
                    &call.what,
                    &NoResponseError::NoAnswer(ANSWER),
                ));
            }
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(answer.into_body());
        }
        let wait = retry_after(answer.headers());
        const WORDS: usize = 64 << 10;
        let words =
            tokio::time::timeout(ANSWER, Limited::new(answer.into_body(), WORDS).collect()).await;
        let words = words.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        Err(RequestError::refused(
            server,
            &call.what,
            status,
            wait,
            &String::from_utf8_lossy(&words),
        ))
    }

    /// The connection in use, or a new one.
    async fn connection(&self) -> Result<Connection, RequestError> {
        let at = {
            let state = self.state.lock();
            if let Some(connection) = &state.connection {
                return Ok(connection.clone());
            }
            state.at
        };
        let made = self.connect(at).await;
        let mut state = self.state.lock();
        match made {
            Ok((stack, server, token)) => {
                state.generation += 1;
                let connection = Connection { stack, server, token, generation: state.generation };
                state.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(why) => {
                // Another server may work. If several requests fail together, only one moves on.
                if state.at == at && state.connection.is_none() {
                    state.at = self.after(at);
                }
                Err(RequestError::local(why))
            }
        }
    }

    async fn connect(&self, at: usize) -> Result<(Stack, String, Option<Arc<Token>>), Problem> {
        let (config, token) = self.config(at).await?;
        let server = shown(&config.cluster_url);
        let stack = build(&config).map_err(|error| {
            let why = with_causes(&error);
            let text = format!("cannot connect to the Kubernetes API at {server}: {why}");
            let detail = store_detail(StoreCause::Tls, None, &server);
            Problem::new("kubernetes-connection", text).with(detail)
        })?;
        Ok((stack, server, token.map(Arc::new)))
    }

    /// The index of the next server.
    fn after(&self, at: usize) -> usize {
        (at + 1) % self.options.urls.len().max(1)
    }

    /// Drops the connection, so that the next request reads the credentials again and goes to the next server. No effect if another request already
    /// dropped it.
    pub(super) fn give_up(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation && state.connection.is_some() {
            state.connection = None;
            state.at = self.after(state.at);
        }
    }

    /// Reads the server's address and the credentials from the kubeconfig or the service account, with a separate token.
    async fn config(&self, at: usize) -> Result<(Config, Option<Token>), Error> {
        let url = self.options.urls.get(at);
        let mut config = match (&self.options.kubeconfig, url) {
            (Some(path), _) => from_kubeconfig(path).await.map_err(Error::Refused)?,
            (None, Some(url)) => from_account(url).map_err(Error::Unavailable)?,
            (None, None) => in_cluster()?,
        };
        if let Some(url) = url {
            config.cluster_url = url.clone();
        }
        config.cluster_url = without_user(config.cluster_url);
        let token = Token::take(&mut config.auth_info).map_err(|why| {
            Error::Refused(match &self.options.kubeconfig {
                Some(path) => unusable_kubeconfig(path, why),
                None => why,
            })
        })?;
        Ok((config, token))
    }
}

pub(super) struct Answer {
    pub body: Incoming,
    /// URL, for messages.
    pub server: String,
    /// For messages, e.g. `list all Nodes`.
    pub what: String,
    /// Serial number of the connection that delivered the response.
    pub generation: u64,
}

fn unusable_kubeconfig(path: &Path, why: impl Display) -> Problem {
    let text = format!("fail to create kubernetes config: {}: {why}", path.display());
    Problem::new("kubeconfig", text)
}

async fn from_kubeconfig(path: &Path) -> Result<Config, Problem> {
    // A value that does not fit may be a token, so do not quote it.
    let unfit = |error: &dyn std::error::Error| {
        unusable_kubeconfig(path, without_values(&with_causes(error)))
    };
    // `read_from` would wait for the writer of a pipe.
    crate::file::read(path).await.map_err(|error| unfit(&error))?;
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unfit(&error))?;
    let (cluster, user) = in_use(&kubeconfig);
    let proxy = cluster.and_then(|cluster| cluster.proxy_url.as_deref());
    if proxy.is_some_and(|url| !url.is_empty()) {
        let why = "the cluster has a proxy-url, which flannel does not support; remove proxy-url, and name an address that this \
                   node reaches as the cluster's server or with --kube-api-url";
        return Err(unusable_kubeconfig(path, why));
    }
    let authority = cluster.and_then(|cluster| cluster.certificate_authority.as_ref());
    let files = user.map(|user| [&user.client_certificate, &user.client_key]);
    let files = files.into_iter().flatten().flatten();
    for file in authority.into_iter().chain(files) {
        if let Err(error) = crate::file::read(file.as_ref()).await {
            return Err(unusable_kubeconfig(path, format_args!("{file}: {error}")));
        }
    }
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| unfit(&error))
}

/// Those of the current context.
fn in_use(kubeconfig: &Kubeconfig) -> (Option<&Cluster>, Option<&AuthInfo>) {
    let mut contexts = kubeconfig.contexts.iter();
    let context = contexts
        .find(|context| Some(&context.name) == kubeconfig.current_context.as_ref())
        .and_then(|context| context.context.as_ref());
    let cluster = context.map(|context| &context.cluster);
    let mut clusters = kubeconfig.clusters.iter();
    let cluster = clusters.find(|known| Some(&known.name) == cluster);
    let user = context.and_then(|context| context.user.as_ref());
    let mut users = kubeconfig.auth_infos.iter();
    let user = users.find(|known| Some(&known.name) == user);
    (
        cluster.and_then(|known| known.cluster.as_ref()),
        user.and_then(|known| known.auth_info.as_ref()),
    )
}

/// A parser's message without what it quotes from the file. It quotes values in the first line of the message, and whole lines of the file below.
fn without_values(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.lines().next().unwrap_or_default();
    // serde writes values that it found as `string "…"`, with escaped quotes inside.
    while let Some((before, after)) = rest.split_once("string \"") {
        out.push_str(before);
        out.push_str("a text");
        let mut escaped = false;
        let end = after.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = end.and_then(|end| after.get(end + 1..)).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// For the pod's service account, with the server's address from the pod's environment.
fn in_cluster() -> Result<Config, Error> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        let text = "fail to create kubernetes config: flanneld does not run in a pod (KUBERNETES_SERVICE_HOST is not set); name a kubeconfig with --kubeconfig-file, \
                    or the API server with --kube-api-url";
        return Err(Error::Refused(Problem::new("kubernetes-no-pod", text)));
    }
    Config::incluster_env().map_err(|error| {
        let why = with_causes(&error);
        let text = format!("cannot read the pod's service account in {ACCOUNT}: {why}");
        Error::Unavailable(Problem::new("kubernetes-service-account", text))
    })
}

/// Uses the pod's service account if it exists. A token is never sent without TLS.
fn from_account(url: &http::Uri) -> Result<Config, Problem> {
    let mut config = Config::new(url.clone());
    let (token, authority) = (Path::new(ACCOUNT).join("token"), Path::new(ACCOUNT).join("ca.crt"));
    if url.scheme_str() == Some("https") && token.exists() {
        let unreadable = |error: &dyn std::error::Error| {
            let text = format!("cannot read {}: {}", authority.display(), with_causes(error));
            Problem::new("kubernetes-service-account", text)
        };
        let roots =
            CertificateDer::pem_file_iter(&authority).map_err(|error| unreadable(&error))?;
        let roots: Result<Vec<_>, _> = roots.map(|root| root.map(|root| root.to_vec())).collect();
        config.root_cert = Some(roots.map_err(|error| unreadable(&error))?);
        config.root_cert_file = Some(authority.clone());
        config.auth_info =
            AuthInfo { token_file: Some(token.display().to_string()), ..AuthInfo::default() };
    }
    Ok(config)
}

/// Adds the layers for address, credentials and headers.
fn build(config: &Config) -> Result<Stack, kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(SILENCE));
    connector.set_keepalive_interval(Some(SILENCE / 3));
    connector.set_keepalive_retries(Some(3));
    connector.set_tcp_user_timeout(Some(SILENCE));
    let https = config.rustls_https_connector_with_connector(connector)?;
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(https);
    let auth = config.auth_layer()?;
    let headers = config.extra_headers_layer()?;
    let stack = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(auth)
        .layer(headers)
        .map_err(BoxError::from)
        .service(client);
    Ok(BoxCloneService::new(stack.map_err(Into::into)))
}

/// Removes the user and the password. Kubernetes uses neither, and the HTTP layers log the whole address.
fn without_user(url: http::Uri) -> http::Uri {
    let host = url
        .authority()
        .and_then(|authority| Some(authority.as_str().rsplit_once('@')?.1.to_owned()));
    let Some(host) = host else { return url };
    let mut parts = url.clone().into_parts();
    parts.authority = host.parse().ok();
    http::Uri::from_parts(parts).unwrap_or(url)
}

/// For messages, without user and password.
fn shown(url: &http::Uri) -> String {
    let text = url.to_string();
    let text = text.trim_end_matches('/');
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => text.to_owned(),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    /// Maximum pause in seconds before a repeated request, even if the server demands a longer one.
    const LONGEST: u64 = 60;
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(LONGEST)))
}

/// The metrics label of a refusal.
fn label(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "refused-401",
        403 => "refused-403",
        404 => "refused-404",
        409 => "refused-409",
        410 => "refused-410",
        422 => "refused-422",
        429 => "refused-429",
        500..=599 => "refused-5xx",
        _ => "refused-other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn server_changes_when_no_connection_to_it_can_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let options = KubeOptions {
            urls: ["https://192.0.2.1:6443", "https://192.0.2.2:6443"]
                .map(|url| url.parse().unwrap())
                .to_vec(),
            kubeconfig: Some(folder.path().join("none")),
            prefix: super::super::annotations::Prefix::parse("a.b").unwrap(),
            net_conf: Default::default(),
            clear_condition: true,
            identity: super::super::options::Identity::Nobody,
            user_agent: "test/1".to_owned(),
            up: Duration::ZERO,
        };
        let api = Api::new(options);
        for at in [1, 0, 1] {
            let why = api
                .read(&Call::get("list-nodes", "list Nodes", "/api/v1/nodes"))
                .await
                .unwrap_err();
            assert!(why.trouble.to_string().contains("none"), "{why:?}");
            assert_eq!(api.state.lock().at, at);
        }
    }

    #[test]
    fn an_address_loses_its_user() {
        for (url, want) in [
            ("https://u:s3cret@192.0.2.1:6443/x?y", "https://192.0.2.1:6443/x?y"),
            ("https://u@[2001:db8::1]:6443", "https://[2001:db8::1]:6443/"),
            ("https://a:6443", "https://a:6443/"),
        ] {
            assert_eq!(without_user(url.parse().unwrap()).to_string(), want);
        }
    }

    #[tokio::test]
    async fn pipe_in_place_of_a_file_that_the_kubeconfig_names_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, pipe) = (folder.path().join("config"), folder.path().join("pipe"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (cluster, user) in [
            ("certificate-authority", "username"),
            ("tls-server-name", "client-certificate"),
            ("tls-server-name", "client-key"),
        ] {
            let text = format!(
                r#"{{"current-context":"c","contexts":[{{"name":"c","context":{{"cluster":"k","user":"u"}}}}],
                "clusters":[{{"name":"k","cluster":{{"server":"https://192.0.2.1","{cluster}":{pipe:?}}}}}],
                "users":[{{"name":"u","user":{{"{user}":{pipe:?}}}}}]}}"#
            );
            std::fs::write(&path, text).unwrap();
            let why = from_kubeconfig(&path).await.unwrap_err().to_string();
            assert!(why.contains("pipe: the path is not"), "{why}");
        }
    }

    #[test]
    fn parser_error_leaves_out_quoted_text() {
        for (text, want) in [
            (
                r#"users[0].user: invalid type: string "s3c\"r\\et", expected struct AuthInfo at line 7"#,
                "users[0].user: invalid type: a text, expected struct AuthInfo at line 7",
            ),
            ("no such file", "no such file"),
            (
                "line 6 column 25: expected mapping start\n --> <input>:6:25\n6 | users: [{name: u, user: s3cret}]",
                "line 6 column 25: expected mapping start",
            ),
            (r#"invalid value: string "s3cret"#, "invalid value: a text"),
            (r#"a string "x", then string "y" there"#, "a a text, then a text there"),
        ] {
            assert_eq!(without_values(text), want);
        }
    }
}
