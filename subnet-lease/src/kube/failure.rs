//! Why a request to the Kubernetes API failed, and what to do about it.

use crate::json::{Object, excerpt, excerpt_within};
use crate::reason::{Kind, Reason};
use http::StatusCode;
use std::time::Duration;

/// What to do about the connection after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Stay,
    /// Ask another server, where there is one.
    NextServer,
    /// Connect anew, with the credentials read again, to the next server.
    Anew,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The server's status; none where there was no answer.
    pub status: Option<StatusCode>,
    /// What to tell.
    pub reason: Reason,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// No answer came from a server.
    pub fn unreachable(server: &str, what: &str, why: &str) -> Self {
        Self {
            status: None,
            reason: Reason::new(Kind::Unreachable, format!("the Kubernetes API at {server} did not answer a request to {what}: {}", hint(why))),
            retry_after: None,
        }
    }

    /// No request was sent.
    pub fn local(text: String) -> Self {
        Self { status: None, reason: Reason::from(text), retry_after: None }
    }

    /// The server sent more than can be used.
    pub fn too_large(server: &str, what: &str, limit: usize) -> Self {
        let text = format!("the answer of the Kubernetes API at {server} to a request to {what} has more than {limit} bytes");
        Self { status: Some(StatusCode::PAYLOAD_TOO_LARGE), reason: Reason::new(Kind::TooLarge, text), retry_after: None }
    }

    /// The server's answer makes no sense.
    pub fn nonsense(server: &str, what: &str, why: &str) -> Self {
        let text = format!(
            "the answer of {server} to a request to {what} is not the Kubernetes API's: {why}; does --kube-api-url, or the kubeconfig, name an API server?"
        );
        Self { status: None, reason: Reason::new(Kind::Said("nonsense".to_owned()), text), retry_after: None }
    }

    /// The server refuses, with its own words in the body of the answer.
    pub fn refused(server: &str, what: &str, status: StatusCode, retry_after: Option<Duration>, body: &str) -> Self {
        let said = Object::parse(body).ok().and_then(|object| object.read::<String>("message").ok().flatten());
        let said = words(&said.unwrap_or_else(|| body.to_owned()));
        let (kind, remedy) = match status {
            StatusCode::UNAUTHORIZED => (
                Kind::Credentials,
                "; the token or the certificate is not accepted: has it expired, is this host's clock right, was the service account deleted?",
            ),
            StatusCode::FORBIDDEN => (Kind::Permission, "; apply the ClusterRole and the ClusterRoleBinding of conf/kube-flannel.yml"),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT | StatusCode::BAD_GATEWAY => {
                (Kind::Unavailable, "")
            }
            StatusCode::INTERNAL_SERVER_ERROR => (Kind::Unavailable, ""),
            status => (Kind::Refused(i32::from(status.as_u16())), ""),
        };
        let text = format!("the Kubernetes API at {server} refused a request to {what} ({}): {said}{remedy}", status.as_u16());
        Self { status: Some(status), reason: Reason::new(kind, text), retry_after }
    }

    /// What to do about the connection, after a request that `reads` or writes.
    pub fn step(&self, reads: bool) -> Step {
        match self.status {
            None | Some(StatusCode::UNAUTHORIZED) => Step::Anew,
            // An admission webhook that fails does so on every server.
            Some(StatusCode::INTERNAL_SERVER_ERROR) if !reads => Step::Stay,
            Some(StatusCode::TOO_MANY_REQUESTS) => Step::NextServer,
            Some(status) if status.is_server_error() => Step::NextServer,
            Some(_) => Step::Stay,
        }
    }

    /// Whether the server has forgotten the version that was asked for, or never had it.
    pub fn is_gone(&self) -> bool {
        self.status == Some(StatusCode::GONE)
            || self.status == Some(StatusCode::GATEWAY_TIMEOUT) && self.reason.text.contains("Too large resource version")
    }

    /// Whether the server does not know this way of asking.
    pub fn is_unknown_request(&self) -> bool {
        matches!(self.status, Some(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::NOT_FOUND | StatusCode::NOT_ACCEPTABLE))
    }

    /// Whether the server has too much to do.
    pub fn is_busy(&self) -> bool {
        self.status == Some(StatusCode::TOO_MANY_REQUESTS)
    }

    /// Whether the answer was too large.
    pub fn is_too_large(&self) -> bool {
        self.status == Some(StatusCode::PAYLOAD_TOO_LARGE)
    }
}

/// The beginning of a server's words.
fn words(text: &str) -> String {
    const LIMIT: usize = 300;
    match text.trim() {
        "" => "no reason was given".to_owned(),
        text => excerpt_within(text, LIMIT),
    }
}

/// What a connection's failure usually means.
fn hint(why: &str) -> String {
    for (sign, remedy) in [
        (
            "UnknownIssuer",
            "its certificate is signed by an authority that this node does not know; check the CA of the kubeconfig or service account",
        ),
        ("NotValidForName", "its certificate is for another name; use a name or an address that it contains"),
        ("Expired", "its certificate has expired, or this host's clock is wrong"),
        ("NotValidYet", "its certificate is not valid yet: is this host's clock right?"),
        ("InvalidContentType", "it does not speak TLS; write http:// for a plain port"),
    ] {
        if why.contains(sign) {
            return format!("{}: {remedy}", excerpt(why));
        }
    }
    words(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let refused = |code: u16, message: &str| {
            let body = format!(r#"{{"kind":"Status","message":"{message}"}}"#);
            Failure::refused("https://a:6443", "list Nodes", StatusCode::from_u16(code).unwrap(), None, &body)
        };
        for (code, kind, steps) in [
            (401, Kind::Credentials, [Step::Anew; 2]),
            (403, Kind::Permission, [Step::Stay; 2]),
            (429, Kind::Unavailable, [Step::NextServer; 2]),
            (500, Kind::Unavailable, [Step::NextServer, Step::Stay]),
            (503, Kind::Unavailable, [Step::NextServer; 2]),
            (422, Kind::Refused(422), [Step::Stay; 2]),
        ] {
            let failure = refused(code, "because");
            assert_eq!((failure.reason.kind.clone(), [true, false].map(|reads| failure.step(reads))), (kind, steps), "{code}");
            assert!(failure.reason.text.contains("because") && failure.reason.text.contains("list Nodes"), "{failure:?}");
        }
        assert!(refused(429, "x").is_busy() && !refused(503, "x").is_busy());
        assert!(refused(403, "x").reason.text.contains("ClusterRole"));
        assert!(refused(410, "too old resource version").is_gone());
        assert!(refused(504, "Too large resource version: 7, current: 3").is_gone() && !refused(504, "timeout").is_gone());
        assert!(Failure::refused("a", "b", StatusCode::BAD_GATEWAY, None, "<html>\n\u{1b}").reason.text.contains("<html>"));
    }
}
