//! The routes of the status API's port and of the Unix socket: the status page and `/api/v1/`, read-only. The socket
//! also has the routes of the health endpoint.

use super::health;
use super::host::own_name_only;
use super::node::{StatusSource, safe};
use super::pace::{Pace, paced};
use super::probe::probe;
use super::shared::{DOCUMENT, Shared};
use super::view::Latest;
use crate::health::Health;
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRef, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use doctor::Report;
use node_api::query::parameter;
use probing::node::Client;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// flanneld renders the comparison of the kernel with the desired state for one client at a time.
static ONE: Semaphore = Semaphore::const_new(1);

/// State of one listener, with the last rendering of each document.
#[derive(Clone, Debug)]
struct Answers {
    status_source: StatusSource,
    node: Shared,
    node_with_rows: Shared,
    findings: Shared,
    view: Latest,
}

impl FromRef<Answers> for StatusSource {
    fn from_ref(answers: &Answers) -> Self {
        answers.status_source.clone()
    }
}

/// Refuses requests whose `Host` header contains a name of another host.
pub(super) fn of_the_status_port(status_source: StatusSource) -> Router {
    let health = status_source.health().clone();
    api(status_source, get(findings), DOCUMENT)
        .layer(from_fn(read_only))
        .layer(from_fn_with_state(health, own_name_only))
        .layer(from_fn_with_state(Pace::default(), paced))
}

pub(super) fn of_the_socket(status_source: StatusSource, health: Health) -> Router {
    let kernel =
        Router::new().route(node_api::ROUTES, get(routes)).with_state(status_source.clone());
    let probe =
        Router::new().route(node_api::PROBE_PATH, get(probe)).with_state(status_source.clone());
    // Only root reaches the socket, so it needs no limit.
    api(status_source, get(fresh_findings), Duration::ZERO)
        .merge(kernel)
        .merge(probe)
        .merge(health::of_the_socket(health))
        .layer(from_fn(read_only))
}

fn api(status_source: StatusSource, findings: MethodRouter<Answers>, pause: Duration) -> Router {
    let shared = || Shared::new(pause);
    let answers = Answers {
        status_source,
        node: shared(),
        node_with_rows: shared(),
        findings: shared(),
        view: Latest::default(),
    };
    Router::new()
        .route("/", get(page))
        .route(node_api::VIEW, get(view))
        .route(node_api::NODE, get(node))
        .route(node_api::FINDINGS, findings)
        .fallback(nothing_here)
        .with_state(answers)
}

/// The query `?rows` also requests the reports of other nodes.
async fn node(State(answers): State<Answers>, target: Uri) -> Response {
    let rows = target.query() == Some("rows");
    if rows {
        answers.status_source.look(Client::Command);
    }
    let shared = if rows { &answers.node_with_rows } else { &answers.node };
    document(shared.get(|| answers.status_source.text(rows)).await)
}

async fn page(State(answers): State<Answers>) -> Response {
    answers.view.page(&answers.status_source).await
}

/// For the query `?row=`, one node's results for its peers.
async fn view(State(answers): State<Answers>, target: Uri, headers: HeaderMap) -> Response {
    match target.query() {
        Some(query) => match parameter(Some(query), "row") {
            Some(subnet) => answers.view.row(&answers.status_source, &subnet).await,
            None => nothing_here().await,
        },
        None => answers.view.document(&answers.status_source, &headers).await,
    }
}

async fn nothing_here() -> Response {
    (
        StatusCode::NOT_FOUND,
        format!(
            "this path does not exist; request /, {}, {} or {}\n",
            node_api::VIEW,
            node_api::NODE,
            node_api::FINDINGS
        ),
    )
        .into_response()
}

/// The latest report, because clients of the port must not start new rounds of checks.
async fn findings(State(answers): State<Answers>) -> Response {
    match answers.status_source.report() {
        Some(report) => document(answers.findings.get(|| safe(&*report)).await),
        None => none_yet(),
    }
}

async fn fresh_findings(State(status_source): State<StatusSource>) -> Response {
    report(status_source.fresh_report().await)
}

/// The comparison of the kernel with the desired state. It reads all of flannel's kernel objects, so the status API's
/// port does not offer it.
async fn routes(State(status_source): State<StatusSource>) -> Response {
    match status_source.routes().await {
        Ok(routes) => {
            let _turn = ONE.acquire().await;
            document(safe(&routes))
        }
        Err(silence) => (StatusCode::SERVICE_UNAVAILABLE, format!("{silence}\n")).into_response(),
    }
}

fn report(report: Option<Arc<Report>>) -> Response {
    report.map_or_else(none_yet, |report| document(safe(&*report)))
}

fn none_yet() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "no check has run yet; try again in a few seconds\n")
        .into_response()
}

fn document(text: serde_json::Result<impl Into<Body>>) -> Response {
    match text {
        Ok(text) => (
            [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")],
            text.into(),
        )
            .into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the document: {error}\n"))
                .into_response()
        }
    }
}

/// Refuses methods other than GET and HEAD.
async fn read_only(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = next.run(request).await;
        response
            .headers_mut()
            .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        return response;
    }
    (
        StatusCode::METHOD_NOT_ALLOWED,
        [(header::ALLOW, "GET, HEAD")],
        "the API is read-only; use GET or HEAD\n",
    )
        .into_response()
}
