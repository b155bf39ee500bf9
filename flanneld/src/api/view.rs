//! `GET /` and `GET /api/v1/view`: the status page and its document. All open status pages share one rendering of it.

use super::node::{StatusSource, safe};
use super::page;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ipnet::IpNet;
use node_api::view::{RowDetails, Sentence, View};
use probing::node::Client;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time of the first request for the document, in milliseconds since 1970.
static STARTED: LazyLock<i64> = LazyLock::new(|| jiff::Timestamp::now().as_millisecond());

/// A rendering takes time and memory for each pair of nodes.
fn pause(nodes: usize) -> Duration {
    Duration::from_secs(match nodes {
        ..=50 => 2,
        51..=200 => 4,
        201.. => 10,
    })
}

/// Pause after the rendering of one node's results, as a multiple of the rendering time. A loop of requests therefore
/// uses about a twentieth of a processor.
const ROW_PAUSE_FACTOR: u32 = 20;
/// Maximum length of that pause, because a busy machine may have prolonged the rendering.
const ROW_PAUSE_LIMIT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub(super) struct Latest {
    last: Arc<Mutex<Option<Rendered>>>,
    /// Earliest time of the next rendering of one node's results.
    row_due: Arc<Mutex<Option<Instant>>>,
}

#[derive(Clone, Debug)]
struct Rendered {
    due: Instant,
    number: u64,
    node: String,
    sentence: Sentence,
    text: Bytes,
}

impl Latest {
    pub(super) async fn page(&self, source: &StatusSource) -> Response {
        match self.rendered(source).await {
            Ok(rendered) => page::page(&rendered.node, &rendered.sentence),
            Err(error) => failed(&error),
        }
    }

    /// 304 if the client already has the document.
    pub(super) async fn document(&self, source: &StatusSource, headers: &HeaderMap) -> Response {
        match self.rendered(source).await {
            Ok(rendered) => respond(&rendered, headers),
            Err(error) => failed(&error),
        }
    }

    pub(super) async fn row(&self, source: &StatusSource, subnet: &str) -> Response {
        let mut due = self.row_due.lock().await;
        if let Some(due) = *due {
            tokio::time::sleep_until(due).await;
        }
        let began = Instant::now();
        let response = row(source, subnet);
        let pause = (began.elapsed() * ROW_PAUSE_FACTOR).min(ROW_PAUSE_LIMIT);
        *due = Some(Instant::now() + pause);
        response
    }

    /// A new rendering if the last one is too old.
    async fn rendered(&self, source: &StatusSource) -> serde_json::Result<Rendered> {
        let mut last = self.last.lock().await;
        if let Some(rendered) = last.as_ref().filter(|last| Instant::now() < last.due) {
            return Ok(rendered.clone());
        }
        // Other nodes report while a page is open.
        source.look(Client::Page);
        let node = source.node();
        let view = View::of(&node, source.health().charts(), crate::logging::recent());
        let rendered = Rendered {
            due: Instant::now() + pause(node.peers.len() + 1),
            number: last.as_ref().map_or(1, |last| last.number + 1),
            text: Bytes::from(safe(&view)?),
            node: view.node,
            sentence: view.sentence,
        };
        *last = Some(rendered.clone());
        Ok(rendered)
    }
}

fn respond(rendered: &Rendered, headers: &HeaderMap) -> Response {
    // A tag of an earlier daemon must not match.
    let tag = format!("\"{}-{}\"", *STARTED, rendered.number);
    let known = headers.get(header::IF_NONE_MATCH);
    let is_known = known.is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (kind, rendered.text.clone()).into_response()
    };
    let out = response.headers_mut();
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        out.insert(header::ETAG, tag);
    }
    response
}

fn row(source: &StatusSource, subnet: &str) -> Response {
    let Ok(subnet) = subnet.parse::<IpNet>() else {
        let text = format!("name a node's subnet: {}?row=10.244.2.0%2F24\n", node_api::VIEW);
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    match RowDetails::of(&source.node(), subnet).map(|row| safe(&row)) {
        Some(Ok(text)) => (
            [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")],
            text,
        )
            .into_response(),
        Some(Err(error)) => failed(&error),
        None => (StatusCode::NOT_FOUND, "no node with this subnet has reported\n").into_response(),
    }
}

fn failed(error: &serde_json::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the document: {error}\n"))
        .into_response()
}
