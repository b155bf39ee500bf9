//! A request to the proxy, and the decision about the request.

use std::net::SocketAddr;
use std::time::Instant;

/// A request to the proxy, and the status code of its response.
#[derive(Debug, Clone)]
pub struct Call {
    /// Address and port of the client's connection.
    pub from: SocketAddr,
    /// HTTP method: `GET`, `PATCH`, …
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The header field `User-Agent`, or empty if the client did not send it.
    pub agent: String,
    /// The header field `Authorization`, if the client sent it.
    pub authorization: Option<String>,
    /// The status code of the response, or 0 before the response.
    pub status: u16,
    /// Time at which the proxy read the request's header fields.
    pub at: Instant,
}

impl Call {
    /// Reports whether the request is a watch. A streamed list is also a watch.
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true") || self.path.contains("watch=1")
    }

    /// Reports whether the request is for the collection of Nodes, not for a single Node.
    pub fn is_of_nodes(&self) -> bool {
        self.path == "/api/v1/nodes" || self.path.starts_with("/api/v1/nodes?")
    }
}

/// The proxy's reaction to a request, which the test chooses.
#[derive(Debug, Clone, Default)]
pub enum Answer {
    /// Forwards the request and passes the server's response to the client.
    #[default]
    Pass,
    /// Forwards the request with this token instead of the client's token.
    As(String),
    /// Replies with a status code, header fields such as `Retry-After: 1`, and a body.
    Reply(u16, Vec<(String, String)>, String),
    /// Does not reply and keeps the connection open.
    Silence,
    /// Closes the client's connection without a reply.
    Cut,
}

impl Answer {
    /// Returns an error reply with a Kubernetes Status object, like an error reply of the API server.
    pub fn status(code: u16, reason: &str) -> Answer {
        let body = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": format!("{reason} (reply of the lab's proxy)"), "reason": reason, "code": code });
        Answer::Reply(code, Vec::new(), body.to_string())
    }
}
