//! The HTTP server that answers for [`Health`].

use super::Health;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use subnet_lease::printable;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How long open requests may take once the daemon stops.
const GRACE: Duration = Duration::from_secs(3);

/// How many unused leases /readyz lists.
const REFUSED: usize = 20;

/// The health server cannot listen on its address.
#[derive(Debug, thiserror::Error)]
#[error("the health server cannot listen on {address}: {why}; {}", remedy(why, *address))]
pub struct BindError {
    address: SocketAddr,
    why: io::Error,
}

fn remedy(why: &io::Error, address: SocketAddr) -> String {
    match why.kind() {
        io::ErrorKind::AddrInUse => {
            format!("find the process with `ss -ltnp sport = :{0}`, or choose another port with --healthz-port (0: no server)", address.port())
        }
        io::ErrorKind::AddrNotAvailable => "set --healthz-ip to an address of this host (0.0.0.0: all of them)".to_owned(),
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one with --healthz-port".to_owned(),
        _ => "check --healthz-ip and --healthz-port".to_owned(),
    }
}

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    health: Health,
}

impl Server {
    /// Starts listening.
    ///
    /// # Errors
    /// Names the address and the remedy.
    pub async fn bind(address: SocketAddr, health: Health) -> Result<Self, BindError> {
        let listener = listen(address).await.map_err(|why| BindError { address, why })?;
        info!("health server listens on http://{address}: /healthz /readyz /metrics /status");
        Ok(Self { listener, health })
    }

    /// The address it listens on, with the port that the system chose if 0 was requested.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`, then gives open requests at most 3 seconds.
    pub async fn serve(self, stop: CancellationToken) {
        let router = Router::new()
            .route("/healthz", any(healthz))
            .route("/readyz", any(readyz))
            .route("/metrics", any(metrics))
            .route("/status", any(status))
            .with_state(self.health);
        let served = axum::serve(self.listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            result = async { served.await } => if let Err(error) = result { warn!("the health server ended: {error}") },
            () = late => info!("closing open requests to the health server"),
        }
    }
}

/// Listens on an address. 0.0.0.0 stands for all of this host, IPv6 too, as it does for Go: kubelet asks an IPv6 node by IPv6.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        match listen_on_all(address.port()) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse || error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // A kernel without IPv6.
            Err(error) => debug!("no health server on IPv6: {error}"),
        }
    }
    TcpListener::bind(address).await
}

fn listen_on_all(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    // As tokio's own.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

async fn healthz(State(health): State<Health>) -> Response {
    match health.alive() {
        Ok(()) => (StatusCode::OK, "flanneld is running").into_response(),
        Err(silent) => (StatusCode::INTERNAL_SERVER_ERROR, format!("flanneld hangs\n{}\n", printable::lines(&silent))).into_response(),
    }
}

async fn readyz(State(health): State<Health>) -> Response {
    let reasons = health.reasons();
    let (code, verdict) =
        if reasons.is_empty() { (StatusCode::OK, "flanneld is ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "flanneld is not ready yet") };
    let unused = health.unused();
    let refused = unused.iter().take(REFUSED).map(|unused| format!("refused: {}", unused.text));
    let more = unused.len().checked_sub(REFUSED + 1).map(|more| format!("refused: {} more, listed in /status", more + 1));
    let lines: Vec<String> = reasons.into_iter().map(|(name, reason)| format!("{name}: {reason}")).chain(refused).chain(more).collect();
    if lines.is_empty() {
        return (code, verdict).into_response();
    }
    let lines: Vec<_> = lines.iter().map(|line| printable::line(line)).collect();
    (code, format!("{verdict}\n{}\n", lines.join("\n"))).into_response()
}

async fn metrics(State(health): State<Health>) -> Response {
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], health.metrics()).into_response()
}

async fn status(State(health): State<Health>) -> Response {
    let mut status = health.status();
    printable::bound(&mut status);
    ([(header::CONTENT_TYPE, "application/json")], printable::json(&status.to_string()).into_owned()).into_response()
}
