//! A client of the API server for tests, with the rights of one user.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::net::netns::Netns;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A client of the API server in a network namespace. A clone acts as the same user as its original.
#[derive(Debug, Clone)]
pub struct ApiClient {
    pub(crate) netns: Netns,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) token: String,
}

/// Creates a TLS configuration that trusts only one certificate authority.
pub(crate) fn trusting(ca: &Path) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(
        CertificateDer::from_pem_file(ca).with_context(|| format!("reading {}", ca.display()))?,
    )?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(
        config.with_root_certificates(roots).with_no_client_auth(),
    ))
}

/// Connects to the API server from a namespace. Returns the TLS stream and the socket below it.
pub(crate) fn connect(
    netns: &Netns,
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
) -> Result<(StreamOwned<ClientConnection, TcpStream>, TcpStream)> {
    let socket = netns.run(|| TcpStream::connect_timeout(&address, TIMEOUT))??;
    socket.set_nodelay(true)?;
    let connection = ClientConnection::new(Arc::clone(tls), ServerName::from(address.ip()))?;
    Ok((StreamOwned::new(connection, socket.try_clone()?), socket))
}

impl ApiClient {
    /// Sends a request. Returns the status code and the JSON of the response, or a string if the response is not JSON.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<(u16, Value)> {
        let what = || format!("{method} https://{}{path}", self.address);
        let (code, text) = self.exchange(method, path, body).with_context(what)?;
        Ok((
            code,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        ))
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<(u16, String)> {
        let (mut stream, socket) = connect(&self.netns, self.address, &self.tls)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        // With HTTP/1.0, the response is not chunked and ends with the connection.
        let mut head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {}\r\n",
            self.address, self.token
        );
        head.push_str("Accept: application/json\r\nUser-Agent: lab\r\n");
        let text = body.map(|(_, body)| body.to_string()).unwrap_or_default();
        if let Some((kind, _)) = body {
            head.push_str(&format!(
                "Content-Type: {kind}\r\nContent-Length: {}\r\n",
                text.len()
            ));
        }
        stream.write_all(format!("{head}\r\n{text}").as_bytes())?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            // The server may close the connection without a TLS close_notify.
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => {}
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .context("an answer without a body")?;
        let code = head
            .split_whitespace()
            .nth(1)
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("no status in {head:?}"))?;
        Ok((code, body.to_owned()))
    }

    fn done(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Result<Value> {
        match self.request(method, path, body)? {
            (200..=299, value) => Ok(value),
            (code, value) => bail!(
                "{method} {path}: {code} {}",
                value["message"].as_str().unwrap_or_default()
            ),
        }
    }

    /// Reads the object or the list at an API path.
    ///
    /// # Errors
    /// Returns an error if the server refuses the request or does not have the object.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.done("GET", path, None)
    }

    /// Creates an object in an API collection. Returns the stored object.
    ///
    /// # Errors
    /// Returns an error if the server refuses the request.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        self.done("POST", collection, Some(("application/json", object)))
    }

    /// Changes an object by a JSON merge patch. Returns the stored object.
    ///
    /// # Errors
    /// Returns an error if the server refuses the request.
    pub fn merge(&self, path: &str, patch: &Value) -> Result<Value> {
        self.done("PATCH", path, Some(("application/merge-patch+json", patch)))
    }

    /// Deletes the object at an API path.
    ///
    /// # Errors
    /// Returns an error if the server refuses the request or does not have the object.
    pub fn delete(&self, path: &str) -> Result<()> {
        self.done("DELETE", path, None).map(drop)
    }
}
