//! A request through the proxy, and what becomes of it.

use std::net::IpAddr;
use std::time::Instant;

/// A request that came, and how it was answered.
#[derive(Debug, Clone)]
pub struct Call {
    /// Address of the client's host.
    pub from: IpAddr,
    /// HTTP method: `GET`, `PATCH`, …
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The header field `User-Agent`; empty without.
    pub agent: String,
    /// The header field `Authorization`, if the client sent it.
    pub authorization: Option<String>,
    /// The status of the answer; 0 as long as there is none.
    pub status: u16,
    /// Time at which its head was read.
    pub at: Instant,
}

impl Call {
    /// Whether it is a watch, a streamed list included.
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true") || self.path.contains("watch=1")
    }

    /// Whether it is about the collection of Nodes, not about one of them.
    pub fn is_of_nodes(&self) -> bool {
        self.path == "/api/v1/nodes" || self.path.starts_with("/api/v1/nodes?")
    }
}

/// The judge's decision about a request.
#[derive(Debug, Clone, Default)]
pub enum Answer {
    /// Passes the server's answer to the client.
    #[default]
    Pass,
    /// The server's, for the holder of this token instead of the client's own.
    As(String),
    /// This status, with fields such as `Retry-After: 1`, and a body.
    Reply(u16, Vec<(String, String)>, String),
    /// No answer, and the connection stays.
    Silence,
    /// Closes the client's connection without an answer.
    Cut,
}

impl Answer {
    /// A failure as the API server words it.
    pub fn status(code: u16, reason: &str) -> Answer {
        let body = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": format!("{reason}, says the lab's proxy"), "reason": reason, "code": code });
        Answer::Reply(code, Vec::new(), body.to_string())
    }
}
