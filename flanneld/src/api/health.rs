//! The health endpoint: /healthz as in Go flannel, /livez, /readyz and /metrics for kubelet and Prometheus, and
//! /status.
//!
//! Pods and other hosts can often reach its port. Clients that do not connect over loopback get only counts of
//! findings from /status.

use super::connections::{self, IsLocal, Times};
use super::host::own_name_only;
use super::listen::{self, HttpServer, Listener};
use super::pace::{Pace, paced};
use super::shared::{DOCUMENT, METRICS, Shared};
use crate::health::{Health, Unused, prometheus_text};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use subnet_lease::admission::Reason;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;
use types::{Problem, printable};

/// Number of unused leases that /readyz lists.
const REFUSED: usize = 20;
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Listens but does not respond yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    health: Health,
}

impl Server {
    /// Fails if the port is taken, the address does not belong to this host, or the port needs a capability that this
    /// process lacks. The error contains the remedy.
    pub async fn bind(address: SocketAddr, health: Health) -> Result<Self, Problem> {
        let listener = listen::serving(HttpServer::Health, address).await?;
        info!(
            url = format!("http://{address}"),
            "health server listens: /healthz /livez /readyz /metrics /status"
        );
        Ok(Self { listener, health })
    }

    /// With the port that the kernel chose if the requested port is 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves requests until `stop`, then waits at most 3 seconds for open requests.
    pub async fn serve(self, stop: CancellationToken) {
        connections::serve(
            Listener::Tcp(self.listener),
            of_the_port(self.health),
            HttpServer::Health.name(),
            Times::default(),
            stop,
        )
        .await;
    }
}

/// State of one listener, with the last rendering of each document.
#[derive(Clone, Debug)]
struct Answers {
    health: Health,
    metrics: Shared,
    status: Shared,
    counts: Shared,
}

/// The routes accept any method, as Go flannel's routes do. The `Host` header of probes may have any value. For
/// /status, it must contain an address, `localhost`, or a name of this node.
fn of_the_port(health: Health) -> Router {
    let status = Router::new()
        .route("/status", any(status))
        .layer(from_fn_with_state(health.clone(), own_name_only));
    let documents =
        documents(status).fallback(nothing_here).layer(from_fn_with_state(Pace::default(), paced));
    routes(health, documents, (METRICS, DOCUMENT))
}

/// Only root can open the Unix socket.
pub(super) fn of_the_socket(health: Health) -> Router {
    routes(
        health,
        documents(Router::new().route("/status", any(status))),
        (Duration::ZERO, Duration::ZERO),
    )
}

/// Adds /metrics to the routes that kubelet does not probe.
fn documents(status: Router<Answers>) -> Router<Answers> {
    status.route("/metrics", any(metrics))
}

async fn nothing_here() -> StatusCode {
    StatusCode::NOT_FOUND
}

fn routes(
    health: Health,
    documents: Router<Answers>,
    (metrics_pause, status_pause): (Duration, Duration),
) -> Router {
    let answers = Answers {
        health,
        metrics: Shared::new(metrics_pause),
        status: Shared::new(status_pause),
        counts: Shared::new(status_pause),
    };
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(healthz))
        .route("/readyz", any(readyz))
        .merge(documents)
        .with_state(answers)
}

async fn healthz(State(answers): State<Answers>) -> Response {
    let silent = answers.health.silent_tasks();
    if silent.is_empty() {
        return (StatusCode::OK, "flanneld is running").into_response();
    }
    let text = format!("flanneld hangs\n{}\n", printable::lines(&silent.join("\n")));
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

async fn readyz(State(answers): State<Answers>) -> Response {
    let health = &answers.health;
    let reasons = health.reasons();
    let unused = health.unused();
    let has_pods = |unused: &Unused| unused.reason != Reason::Reserved.label();
    let (code, verdict) = match (reasons.is_empty(), unused.iter().any(has_pods)) {
        (true, false) => (StatusCode::OK, "flanneld is ready"),
        (true, true) => {
            (StatusCode::OK, "flanneld is ready, but does not reach the pods of refused leases")
        }
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "flanneld is not ready yet"),
    };
    let refused = unused.iter().take(REFUSED).map(|unused| format!("refused: {}", unused.text));
    let more = unused
        .len()
        .checked_sub(REFUSED + 1)
        .map(|more| format!("refused: {} more, listed in /status", more + 1));
    let lines: Vec<String> = reasons
        .into_iter()
        .map(|(name, reason)| format!("{name}: {reason}"))
        .chain(refused)
        .chain(more)
        .collect();
    if lines.is_empty() {
        return (code, verdict).into_response();
    }
    let lines: Vec<_> = lines.iter().map(|line| printable::line(line)).collect();
    (code, format!("{verdict}\n{}\n", lines.join("\n"))).into_response()
}

/// Responds in the OpenMetrics format if the client accepts it, as Prometheus does. Others get Prometheus' text
/// format, which promtool needs.
async fn metrics(State(answers): State<Answers>, headers: HeaderMap) -> Response {
    let Ok(text) = answers.metrics.latest(|| Ok::<_, Infallible>(answers.health.metrics())).await;
    if accepts_openmetrics(&headers) {
        return ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response();
    }
    let text = prometheus_text::from_openmetrics(&String::from_utf8_lossy(&text));
    ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response()
}

/// By `q=0`, a client refuses a media type (RFC 9110, 12.4.2).
fn is_weight_of_zero(parameter: &str) -> bool {
    parameter
        .split_once('=')
        .is_some_and(|(name, value)| name.eq_ignore_ascii_case("q") && value.parse() == Ok(0.0))
}

/// The `Accept` header has to name OpenMetrics, because a wildcard selects Prometheus' text format.
fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts
                .next()
                .is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            named && !parts.any(is_weight_of_zero)
        })
}

async fn status(
    State(answers): State<Answers>,
    Extension(IsLocal(is_local)): Extension<IsLocal>,
) -> Response {
    let render = || {
        let mut status = if is_local { answers.health.status() } else { answers.health.counts() };
        printable::bound(&mut status);
        Ok::<_, Infallible>(printable::json(&status.to_string()).into_owned())
    };
    let Ok(text) = if is_local {
        answers.status.latest(render).await
    } else {
        answers.counts.latest(render).await
    };
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use doctor::Report;
    use doctor::finding::{DaemonState, Finding, Severity};
    use std::sync::Arc;
    use std::time::Instant;

    async fn asked(health: &Health, is_local: bool) -> serde_json::Value {
        let shared = || Shared::new(DOCUMENT);
        let answers = Answers {
            health: health.clone(),
            metrics: shared(),
            status: shared(),
            counts: shared(),
        };
        let answer = status(State(answers), Extension(IsLocal(is_local))).await;
        serde_json::from_slice(&axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap())
            .unwrap()
    }

    #[tokio::test]
    async fn status_has_causes_for_this_host_and_counts_for_others() {
        let health = Health::new();
        health.node(|node| node.network.subnets = vec!["10.5.72.0/24".parse().unwrap()]);
        assert_eq!(
            asked(&health, false).await,
            serde_json::json!({ "ready": false, "alive": true, "counts": {} })
        );
        let report = Report {
            schema: doctor::finding::SCHEMA.to_owned(),
            node: "node-1".to_owned(),
            at: "2026-07-24T10:00:00Z".parse().unwrap(),
            daemon: DaemonState::Running,
            checks: 1,
            findings: vec![Finding::new(
                "ufw",
                Severity::Broken,
                "node-2 at 192.0.2.9",
                "what",
                "why",
            )],
            unknown: Vec::new(),
        };
        health.set_report(Instant::now(), Arc::new(report));
        assert_eq!(
            asked(&health, false).await,
            serde_json::json!({ "ready": false, "alive": true, "counts": { "ufw": 1 } })
        );
        let all = asked(&health, true).await.to_string();
        assert!(all.contains("10.5.72.0/24") && all.contains("192.0.2.9"), "{all}");
    }
}
