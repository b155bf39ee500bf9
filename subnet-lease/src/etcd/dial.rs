//! Dials an endpoint, for a channel over one connection that never reconnects on its own.
//!
//! Knowledge of a server (its cluster, whether it requires a user) is valid for one connection only. A channel that reconnects silently could write
//! to a server that flanneld has not checked.

use super::error::{Asked, EndpointError};
use super::tls::Tls;
use super::tls::error::TlsError;
use crate::foreign::ConnectError;
use crate::reason::with_causes;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

/// For one step of the connection setup, e.g. the TLS handshake.
pub(super) const CONNECT: Duration = Duration::from_secs(3);
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// HTTP/2 connection preface, with an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Length in bytes of an HTTP/2 frame header: three bytes of length, then the type, the flags and the stream id.
/// The first frame that a server sends has the type SETTINGS.
const FRAME: usize = 9;
const TYPE: usize = 3;
const SETTINGS: u8 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A host name or address (IPv6 in brackets) with its port, and whether the endpoint uses TLS.
    Host(Uri, bool),
    Unix(PathBuf),
}

impl Target {
    /// An endpoint without a scheme uses TLS if `secure` is set.
    pub(super) fn parse(endpoint: &str, secure: bool) -> Result<Self, EndpointError> {
        if let Some(path) =
            endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"))
        {
            return Ok(Self::Unix(path.into()));
        }
        let (tls, rest) =
            match (endpoint.strip_prefix("https://"), endpoint.strip_prefix("http://")) {
                (Some(rest), _) => (true, rest),
                (_, Some(rest)) => (false, rest),
                _ => (secure, endpoint),
            };
        // TLS runs below the channel, so the channel's URI has the scheme of plain HTTP.
        let uri = format!("http://{rest}")
            .parse::<Uri>()
            .map_err(|error| EndpointError::NoAddress(error.to_string()))?;
        Ok(Self::Host(uri, tls))
    }

    pub(super) fn tls(&self) -> bool {
        matches!(self, Target::Host(_, true))
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A channel, and the TLS error that occurred on it.
pub(super) struct Dialed {
    /// It ends with its connection.
    pub channel: Channel,
    /// `None` for a unix socket.
    pub local: Option<IpAddr>,
    noted: Noted,
}

impl Dialed {
    /// The TLS error that the server sent after the handshake, e.g. a refusal of this node's certificate.
    pub(super) fn complaint(&self) -> Option<rustls::Error> {
        self.noted.lock().clone()
    }
}

type Noted = Arc<Mutex<Option<rustls::Error>>>;

/// If TLS fails, the error names the side that refuses it, and the reason.
pub(super) async fn dial(target: &Target, tls: Option<&Tls>) -> Result<Dialed, EndpointError> {
    let (stream, local) = reach(target).await?;
    let noted = Noted::default();
    let stream: Box<dyn Duplex> = match (target, tls) {
        (Target::Host(uri, true), Some(tls)) => {
            match timeout(CONNECT, shake_hands(stream, uri, tls)).await {
                Err(_) => return Err(EndpointError::NoAnswer(Asked::Handshake, CONNECT)),
                Ok(Ok(stream)) => {
                    Box::new(Listening { stream, noted: noted.clone(), failed: None, ended: false })
                }
                Ok(Err(error)) => return Err(explained(&error, target, tls).await.into()),
            }
        }
        _ => stream,
    };
    let uri = match target {
        Target::Host(uri, _) => uri.clone(),
        Target::Unix(_) => Uri::from_static("http://localhost"),
    };
    let endpoint = Endpoint::from(uri).http2_keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let channel = timeout(CONNECT, endpoint.connect_with_connector(Once(Some(stream)))).await;
    let channel = channel.map_err(|_| EndpointError::NoConnection(CONNECT))?;
    let channel = channel.map_err(|error| unreachable(&error))?;
    Ok(Dialed { channel, local, noted })
}

/// Without TLS; with the connection's local address.
async fn reach(target: &Target) -> Result<(Box<dyn Duplex>, Option<IpAddr>), EndpointError> {
    let stream = async {
        match target {
            Target::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path)
                    .await
                    .map_err(|error| unreachable(&error))?;
                Ok((Box::new(stream) as Box<dyn Duplex>, None))
            }
            Target::Host(uri, _) => {
                // The connector resolves names and tries all their addresses.
                let mut connector = HttpConnector::new();
                connector.set_nodelay(true);
                connector.set_connect_timeout(Some(CONNECT));
                match connector.call(uri.clone()).await {
                    Ok(stream) => {
                        let stream = stream.into_inner();
                        let local =
                            stream.local_addr().ok().map(|address| address.ip().to_canonical());
                        Ok((Box::new(stream) as Box<dyn Duplex>, local))
                    }
                    Err(error) => Err(unreachable(&error)),
                }
            }
        }
    };
    match timeout(CONNECT, stream).await {
        Ok(reached) => reached,
        Err(_) => Err(EndpointError::NoConnection(CONNECT)),
    }
}

/// Takes an error of the system, the resolver or the HTTP layers.
fn unreachable(error: &(dyn std::error::Error + 'static)) -> EndpointError {
    EndpointError::Unreachable(ConnectError::of(error), with_causes(error))
}

async fn shake_hands(
    stream: Box<dyn Duplex>,
    uri: &Uri,
    tls: &Tls,
) -> io::Result<tokio_rustls::client::TlsStream<Box<dyn Duplex>>> {
    let host =
        uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    TlsConnector::from(tls.config.clone()).connect(name, stream).await
}

/// Why a handshake failed. If the error has no TLS cause, it checks whether the endpoint speaks plain HTTP/2.
async fn explained(error: &io::Error, target: &Target, tls: &Tls) -> TlsError {
    match spoken(error) {
        Some(rustls::Error::InvalidMessage(_)) | None if speaks_plain(target).await => {
            TlsError::new(
                "etcd-speaks-no-tls",
                "etcd does not speak TLS at this endpoint; write http:// in --etcd-endpoints, or give etcd a certificate (--cert-file)",
            )
        }
        Some(error) => tls.explain(error),
        None => TlsError::new("etcd-tls-failed", format!("the TLS handshake failed: {error}")),
    }
}

/// The TLS error inside an I/O error of the stream.
fn spoken(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// True if the server replies to HTTP/2 without TLS.
async fn speaks_plain(target: &Target) -> bool {
    let asked = async {
        let (mut stream, _) = reach(target).await.ok()?;
        stream.write_all(PREFACE).await.ok()?;
        let mut frame = [0; FRAME];
        stream.read_exact(&mut frame).await.ok()?;
        Some(frame.get(TYPE) == Some(&SETTINGS))
    };
    timeout(CONNECT, asked).await.ok().flatten() == Some(true)
}

/// True if the server replies to a TLS handshake; a refusal is also a reply.
pub(super) async fn speaks_tls(target: &Target) -> bool {
    let Target::Host(uri, _) = target else {
        return false;
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let Ok(builder) =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
    else {
        return false;
    };
    // No certificate is trusted, so the handshake fails. The kind of failure shows whether the server speaks TLS.
    let config =
        builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    let Ok(name) = ServerName::try_from(
        uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned(),
    ) else {
        return false;
    };
    let asked = async {
        let (stream, _) = reach(target).await.ok()?;
        Some(match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
            Ok(_) => true,
            Err(error) => matches!(
                spoken(&error),
                Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
            ),
        })
    };
    timeout(CONNECT, asked).await.ok().flatten() == Some(true)
}

/// Connector that opens only one connection. A second call fails, so that the library cannot reconnect unnoticed.
struct Once(Option<Box<dyn Duplex>>);

impl Service<Uri> for Once {
    type Response = TokioIo<Box<dyn Duplex>>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        std::future::ready(
            self.0.take().map(TokioIo::new).ok_or_else(|| {
                io::Error::new(io::ErrorKind::NotConnected, "the connection has ended")
            }),
        )
    }
}

/// Records TLS errors, because the HTTP layers pass on only the text of an error.
struct Listening<S> {
    stream: S,
    noted: Noted,
    /// Error of the last write, kept while the client reads the server's last data.
    failed: Option<io::Error>,
    /// Reading has ended, so that no more data can arrive.
    ended: bool,
}

impl<S: AsyncRead + Unpin> Listening<S> {
    fn note(&mut self, error: &io::Error) {
        self.ended = true;
        if let Some(error) = spoken(error) {
            self.noted.lock().get_or_insert_with(|| error.clone());
        }
    }

    /// Reads the data that the server sent before a write failed. A TLS alert may still be unread or in transit. Because the connection is dead, this
    /// ends soon.
    fn exit_report(&mut self, cx: &mut Context<'_>, error: io::Error) -> Poll<io::Error> {
        if self.ended {
            return Poll::Ready(error);
        }
        self.failed = Some(error);
        let mut room = [0; 512];
        loop {
            let mut buf = ReadBuf::new(&mut room);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf)) {
                Ok(()) if buf.filled().is_empty() => break,
                Ok(()) => {}
                Err(error) => {
                    self.note(&error);
                    break;
                }
            }
        }
        Poll::Ready(self.failed.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        if let Err(error) = &read {
            self.note(error);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Listening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match self.failed.take() {
            Some(error) => Err(error),
            None => ready!(Pin::new(&mut self.stream).poll_write(cx, buf)),
        };
        match written {
            Ok(count) => Poll::Ready(Ok(count)),
            Err(error) => self.exit_report(cx, error).map(Err),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match self.failed.take() {
            Some(error) => Err(error),
            None => ready!(Pin::new(&mut self.stream).poll_flush(cx)),
        };
        match flushed {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => self.exit_report(cx, error).map(Err),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
