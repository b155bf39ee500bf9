//! Failed requests to the Kubernetes API, and the effect of each failure on the connection.

use super::error::{KubeError, NoResponseError};
use super::status::RefusedCall;
use http::StatusCode;
use std::borrow::Cow;
use std::time::Duration;

/// Effect of a failure on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Stay,
    /// If the options name several servers.
    NextServer,
    /// New connection to the next server, with the credentials read again.
    Anew,
}

/// A failed request: no response, an unusable response, or a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestError {
    /// The server's status; `None` if the server sent no response.
    pub status: Option<StatusCode>,
    pub trouble: KubeError,
    /// Time that the server asks the client to wait (Retry-After).
    pub(crate) retry_after: Option<Duration>,
}

impl RequestError {
    pub(super) fn unreachable(server: &str, what: &str, why: NoResponseError) -> Self {
        let trouble =
            KubeError::Unreachable { server: server.to_owned(), what: what.to_owned(), why };
        Self { status: None, trouble, retry_after: None }
    }

    /// For unusable files or options, before any request.
    pub(super) fn local(trouble: KubeError) -> Self {
        Self { status: None, trouble, retry_after: None }
    }

    pub(super) fn too_large(server: &str, what: &str, limit: usize) -> Self {
        let trouble =
            KubeError::TooLarge { server: server.to_owned(), what: what.to_owned(), limit };
        Self { status: Some(StatusCode::PAYLOAD_TOO_LARGE), trouble, retry_after: None }
    }

    pub(super) fn nonsense(server: &str, what: &str, why: impl Into<Cow<'static, str>>) -> Self {
        let trouble = KubeError::Nonsense {
            server: server.to_owned(),
            what: what.to_owned(),
            why: why.into(),
        };
        Self { status: None, trouble, retry_after: None }
    }

    pub(super) fn refused(
        server: &str,
        what: &str,
        status: StatusCode,
        retry_after: Option<Duration>,
        body: &str,
    ) -> Self {
        let refusal = Box::new(RefusedCall::read(status, body));
        let trouble = KubeError::Refused {
            server: server.to_owned(),
            what: what.to_owned(),
            status,
            refusal,
        };
        Self { status: Some(status), trouble, retry_after }
    }

    /// `reads`: the request only reads.
    pub(super) fn step(&self, reads: bool) -> Step {
        match self.status {
            None | Some(StatusCode::UNAUTHORIZED) => Step::Anew,
            // A failing admission webhook fails on every server.
            Some(StatusCode::INTERNAL_SERVER_ERROR) if !reads => Step::Stay,
            Some(StatusCode::TOO_MANY_REQUESTS) => Step::NextServer,
            Some(status) if status.is_server_error() => Step::NextServer,
            Some(_) => Step::Stay,
        }
    }

    /// Whether the server no longer has the requested resource version, or does not have it yet.
    pub(super) fn is_gone(&self) -> bool {
        self.status == Some(StatusCode::GONE)
            || matches!(&self.trouble, KubeError::Refused { refusal, .. } if refusal.is_too_new)
    }

    pub(super) fn is_unknown_request(&self) -> bool {
        matches!(
            self.status,
            Some(
                StatusCode::BAD_REQUEST
                    | StatusCode::UNPROCESSABLE_ENTITY
                    | StatusCode::NOT_FOUND
                    | StatusCode::NOT_ACCEPTABLE
            )
        )
    }

    pub(super) fn is_busy(&self) -> bool {
        self.status == Some(StatusCode::TOO_MANY_REQUESTS)
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.status == Some(StatusCode::PAYLOAD_TOO_LARGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::problem::StoreCause;
    use types::{Coded, Detail};

    fn refused(code: u16, message: &str) -> RequestError {
        let body = format!(r#"{{"kind":"Status","message":"{message}"}}"#);
        RequestError::refused(
            "https://a:6443",
            "list Nodes",
            StatusCode::from_u16(code).unwrap(),
            None,
            &body,
        )
    }

    /// HTTP status, error code, cause, and the effects on the connection after a read and after a write.
    const REFUSALS: &[(u16, &str, StoreCause, [Step; 2])] = &[
        (401, "kubernetes-credentials", StoreCause::User, [Step::Anew; 2]),
        (403, "kubernetes-forbidden", StoreCause::Role, [Step::Stay; 2]),
        (429, "kubernetes-unavailable", StoreCause::Other, [Step::NextServer; 2]),
        (500, "kubernetes-unavailable", StoreCause::Other, [Step::NextServer, Step::Stay]),
        (503, "kubernetes-unavailable", StoreCause::Other, [Step::NextServer; 2]),
        (422, "kubernetes-refused", StoreCause::Other, [Step::Stay; 2]),
    ];

    #[test]
    fn refusals_name_code_cause_and_step() {
        for &(status, code, cause, steps) in REFUSALS {
            let failure = refused(status, "because");
            assert_eq!(
                (failure.trouble.code(), [true, false].map(|reads| failure.step(reads))),
                (code, steps),
                "{status}"
            );
            let detail = Detail::Store {
                cause,
                status: Some(status),
                server: Some("https://a:6443".to_owned()),
            };
            assert_eq!(failure.trouble.detail(), detail, "{status}");
            let text = failure.trouble.to_string();
            assert!(text.contains("because") && text.contains("list Nodes"), "{failure:?}");
        }
    }

    #[test]
    fn refusals_are_recognised_by_status() {
        assert!(refused(429, "x").is_busy() && !refused(503, "x").is_busy());
        assert!(refused(403, "x").trouble.to_string().contains("ClusterRole"));
        assert!(refused(410, "too old resource version").is_gone());
        assert!(
            refused(504, "Too large resource version: 7, current: 3").is_gone()
                && !refused(504, "timeout").is_gone()
        );
        let page = RequestError::refused("a", "b", StatusCode::BAD_GATEWAY, None, "<html>\n\u{1b}");
        assert!(page.trouble.to_string().contains("<html>"));
    }
}
