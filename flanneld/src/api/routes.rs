//! What the page's port and the socket answer: `/api/v1/`, read only. The socket carries the health endpoint's answers, too.

use super::health;
use super::host::is_ours;
use super::node::{Describer, safe};
use super::probe::probe;
use crate::health::Health;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use doctor::Report;
use std::sync::Arc;
use subnet_lease::printable;
use tokio::sync::Semaphore;

/// Documents are made one after the other.
static ONE: Semaphore = Semaphore::const_new(1);

/// What the page's port answers: to requests for this node by a name of its own alone.
pub fn of_the_page(describer: Describer) -> Router {
    api(describer.clone(), get(findings)).layer(from_fn(read_only)).layer(from_fn_with_state(describer, own_name_only))
}

/// What the socket answers.
pub fn of_the_socket(describer: Describer, health: Health) -> Router {
    let kernel = Router::new().route(node_api::ROUTES, get(routes)).with_state(describer.clone());
    let probe = Router::new().route(node_api::PROBE_PATH, get(probe)).with_state(describer.clone());
    api(describer, get(fresh_findings)).merge(kernel).merge(probe).merge(health::routes(health)).layer(from_fn(read_only))
}

fn api(describer: Describer, findings: MethodRouter<Describer>) -> Router {
    Router::new().route(node_api::NODE, get(node)).route(node_api::FINDINGS, findings).fallback(nothing_here).with_state(describer)
}

/// The document. With `?rows` in the target, other nodes are asked for what they know.
async fn node(State(describer): State<Describer>, target: Uri) -> Response {
    let rows = target.query() == Some("rows");
    if rows {
        describer.look();
    }
    // One at a time: in large clusters a document is large.
    let _turn = ONE.acquire().await;
    document(describer.text(rows))
}

async fn nothing_here() -> Response {
    (StatusCode::NOT_FOUND, format!("nothing is here; ask for {} or {}\n", node_api::NODE, node_api::FINDINGS)).into_response()
}

/// The latest report: whoever reaches the port must not set the pace of the doctor's rounds.
async fn findings(State(describer): State<Describer>) -> Response {
    report(describer.report())
}

async fn fresh_findings(State(describer): State<Describer>) -> Response {
    report(describer.fresh_report().await)
}

/// The comparison with the kernel. Each reads all of flannel's objects, so that not everybody who reaches the page's port may ask.
async fn routes(State(describer): State<Describer>) -> Response {
    match describer.routes().await {
        Ok(routes) => {
            let _turn = ONE.acquire().await;
            document(safe(&routes))
        }
        Err(silence) => (StatusCode::SERVICE_UNAVAILABLE, format!("{silence}\n")).into_response(),
    }
}

fn report(report: Option<Arc<Report>>) -> Response {
    match report {
        Some(report) => document(safe(&*report)),
        None => (StatusCode::SERVICE_UNAVAILABLE, "nothing has been looked at yet: ask again in a few seconds\n").into_response(),
    }
}

fn document(text: serde_json::Result<String>) -> Response {
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("the document cannot be written: {error}\n")).into_response(),
    }
}

/// Nothing can be changed through the API.
async fn read_only(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = next.run(request).await;
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        return response;
    }
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")], "the API only reads: use GET or HEAD\n").into_response()
}

/// Refuses requests that a page of another site makes (DNS rebinding).
async fn own_name_only(State(describer): State<Describer>, request: Request, next: Next) -> Response {
    let host = host(request.uri(), request.headers().get(header::HOST));
    match host {
        Some(host) if is_ours(&host, &describer.names()) => next.run(request).await,
        host => {
            let host = host.map_or("no host at all".to_owned(), |host| format!("the host {:?}", printable::value(&host)));
            let text = format!("this request names {host}: use an address of this node, its name, or localhost\n");
            (StatusCode::MISDIRECTED_REQUEST, text).into_response()
        }
    }
}

/// The host that a request names. One in its target counts before the header.
fn host(target: &Uri, header: Option<&HeaderValue>) -> Option<String> {
    let header = || header.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    target.authority().map(ToString::to_string).or_else(header)
}
