//! `GET /api/v1/probe?peer=…`, only on the Unix socket. A probe sends packets, so clients of a TCP port must not be
//! able to request one.

use super::node::{StatusSource, safe};
use crate::probe::Tracer;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use node_api::probe::asked;

pub(super) async fn probe(State(status_source): State<StatusSource>, target: Uri) -> Response {
    let Some(peer) = asked(target.query()) else {
        return (
            StatusCode::BAD_REQUEST,
            format!(
                "the request names no peer or pod; use for example {}?peer=10.244.2.7\n",
                node_api::PROBE_PATH
            ),
        )
            .into_response();
    };
    let Some(tracer) = Tracer::of(status_source.health()) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "this node has no lease yet, or its backend carries no packets: there is nothing to probe\n")
            .into_response();
    };
    let target = match tracer.target(&peer) {
        Ok(target) => target,
        Err(error) => {
            return (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")).into_response();
        }
    };
    match tracer.probe(target).await {
        Ok(probe) => match safe(&probe) {
            Ok(text) => (
                [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")],
                text,
            )
                .into_response(),
            Err(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the document: {error}\n"))
                    .into_response()
            }
        },
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}
