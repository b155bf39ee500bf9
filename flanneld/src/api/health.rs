//! The health endpoint, as Go flannel has it: /healthz, /livez, /readyz, /metrics and /status, for kubelet and Prometheus. Nothing per peer.

use super::connections::{self, Times};
use super::listen::{self, Listener};
use crate::health::Health;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use std::io;
use std::net::SocketAddr;
use subnet_lease::printable;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

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
        let listener = listen::tcp(address).await.map_err(|why| BindError { address, why })?;
        info!("health server listens on http://{address}: /healthz /livez /readyz /metrics /status");
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
        connections::serve(Listener::Tcp(self.listener), routes(self.health), "the health server", Times::default(), stop).await;
    }
}

/// What the health endpoint answers, with any method, as Go's does.
pub(super) fn routes(health: Health) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(healthz))
        .route("/readyz", any(readyz))
        .route("/metrics", any(metrics))
        .route("/status", any(status))
        .with_state(health)
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
