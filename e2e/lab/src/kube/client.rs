//! A client of the API server, with the rights of one user.

use std::fmt::Debug;
use std::io::{BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::kube::http::Head;
use crate::net::netns::Netns;
use wait::Wait;

/// A clone acts as the same user.
#[derive(Debug, Clone)]
pub struct ApiClient {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: String,
}

/// Where a client or a proxy finds the API server.
#[derive(Debug, Clone)]
pub(crate) enum Endpoint {
    /// Reached from a namespace.
    Server { netns: Netns, address: SocketAddr, tls: Arc<ClientConfig> },
    /// A server in this process.
    Fake(Arc<dyn Answers>),
}

/// A server in this process.
pub(crate) trait Answers: Debug + Send + Sync {
    /// Fails while the server is stopped.
    fn answer(&self, request: &Request<'_>) -> std::io::Result<Response>;
}

pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    /// The path with its query.
    pub(crate) target: &'a str,
    pub(crate) token: &'a str,
    pub(crate) agent: &'a str,
    pub(crate) content_type: &'a str,
    pub(crate) body: &'a [u8],
}

/// Its body ends with the end of the stream.
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) body: Box<dyn Read>,
}

/// Trusts only this certificate authority.
pub(crate) fn tls_client_config(ca: &Path) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(
        CertificateDer::from_pem_file(ca).with_context(|| format!("reading {}", ca.display()))?,
    )?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

impl Endpoint {
    /// Ends as soon as the response begins. `timeout` is the maximum time between two parts of the response.
    pub(crate) fn send(
        &self,
        request: &Request<'_>,
        timeout: Option<Duration>,
    ) -> Result<Response> {
        let (netns, address, tls) = match self {
            Endpoint::Server { netns, address, tls } => (netns, address, tls),
            Endpoint::Fake(fake) => return Ok(fake.answer(request)?),
        };
        let socket = netns.run(|| TcpStream::connect_timeout(address, Wait::start().left()))??;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(timeout)?;
        let connection = ClientConnection::new(Arc::clone(tls), ServerName::from(address.ip()))?;
        let mut stream = BufReader::new(StreamOwned::new(connection, socket));
        // With HTTP/1.0, the response is not chunked and ends with the connection.
        let mut head = format!(
            "{} {} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nUser-Agent: {}\r\n",
            request.method, request.target, request.token, request.agent
        );
        head.push_str("Accept: application/json\r\n");
        if !request.content_type.is_empty() {
            head.push_str(&format!(
                "Content-Type: {}\r\nContent-Length: {}\r\n",
                request.content_type,
                request.body.len()
            ));
        }
        let message = [head.as_bytes(), b"\r\n", request.body].concat();
        stream.get_mut().write_all(&message)?;
        let head = Head::read(&mut stream)?.ok_or(Error::from(ErrorKind::UnexpectedEof))?;
        let body = Box::new(stream);
        Ok(Response { head, body })
    }
}

impl ApiClient {
    /// The status code and the JSON of the response, or a string if it is not JSON. A watch responds until its time limit.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<(u16, Value)> {
        let text = body.map(|(_, body)| body.to_string()).unwrap_or_default();
        let request = Request {
            method,
            target: path,
            token: &self.token,
            agent: "lab",
            content_type: body.map(|(kind, _)| kind).unwrap_or_default(),
            body: text.as_bytes(),
        };
        let mut answer = Vec::new();
        let sent = self.endpoint.send(&request, Some(Wait::start().left()));
        let head = sent.and_then(|mut response| {
            match response.body.read_to_end(&mut answer) {
                // The server may close the connection without a TLS close_notify.
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error.into()),
                _ => Ok(response.head),
            }
        });
        let head = head.with_context(|| format!("{method} {path}"))?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        Ok((head.status(), serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    fn request_and_require_success(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value> {
        match self.request(method, path, body)? {
            (200..=299, value) => Ok(value),
            (code, value) => {
                bail!("{method} {path}: {code} {}", value["message"].as_str().unwrap_or_default())
            }
        }
    }

    /// The object or the list at an API path.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.request_and_require_success("GET", path, None)
    }

    /// The result is the stored object.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        self.request_and_require_success("POST", collection, Some(("application/json", object)))
    }

    /// `patch` is a JSON merge patch. The result is the stored object.
    pub fn merge(&self, path: &str, patch: &Value) -> Result<Value> {
        self.request_and_require_success(
            "PATCH",
            path,
            Some(("application/merge-patch+json", patch)),
        )
    }

    /// The object at an API path.
    pub fn delete(&self, path: &str) -> Result<()> {
        self.request_and_require_success("DELETE", path, None).map(drop)
    }
}
