//! A request to the proxy, and the decision about the request.

use std::net::SocketAddr;
use std::time::Instant;

/// With the status code of its response.
#[derive(Debug, Clone)]
pub struct Call {
    /// Of the client's connection.
    pub from: SocketAddr,
    /// `GET`, `PATCH`, …
    pub method: String,
    /// With its query.
    pub path: String,
    /// `User-Agent`; empty if the client did not send it.
    pub agent: String,
    /// The header field of this name.
    pub authorization: Option<String>,
    /// 0 before the response.
    pub status: u16,
    /// When the proxy read the header fields.
    pub at: Instant,
}

impl Call {
    /// A streamed list is also a watch.
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true") || self.path.contains("watch=1")
    }

    /// It asks for the collection of Nodes, not for a single Node.
    pub fn is_for_node_collection(&self) -> bool {
        self.path == "/api/v1/nodes" || self.path.starts_with("/api/v1/nodes?")
    }
}

/// What the proxy does with a request.
#[derive(Debug, Clone, Default)]
pub enum Answer {
    /// Forwards the request and passes on the response.
    #[default]
    Pass,
    /// Forwards the request with this token instead of the client's.
    As(String),
    /// Replies with a status code, header fields such as `Retry-After: 1`, and a body.
    Reply(u16, Vec<(String, String)>, String),
    /// Keeps the connection open.
    Silence,
    /// Closes the connection without a reply.
    Cut,
}

impl Answer {
    /// The body is a Kubernetes Status object, as from the API server.
    pub fn failure_status_reply(code: u16, reason: &str) -> Answer {
        let body = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": format!("{reason} (reply of the lab's proxy)"), "reason": reason, "code": code });
        Answer::Reply(code, Vec::new(), body.to_string())
    }
}
