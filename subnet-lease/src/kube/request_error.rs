//! Failed requests to the Kubernetes API, and the effect of each failure on the connection.

use super::error::{NoResponseError, store_detail};
use super::status::{self, RefusedCall};
use http::StatusCode;
use std::fmt::Display;
use std::time::Duration;
use types::Problem;
use types::problem::StoreCause;

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
    pub trouble: Problem,
    /// Time that the server asks the client to wait (Retry-After).
    pub(crate) retry_after: Option<Duration>,
    /// The server does not have the requested resource version yet.
    is_too_new: bool,
}

impl From<RequestError> for Problem {
    fn from(failure: RequestError) -> Self {
        failure.trouble
    }
}

/// `what` describes the request, e.g. `list all Nodes`.
impl RequestError {
    pub(super) fn unreachable(server: &str, what: &str, why: &NoResponseError) -> Self {
        let text =
            format!("the Kubernetes API at {server} did not respond to a request to {what}: {why}");
        let detail = store_detail(why.cause(), None, server);
        Self::local(Problem::new("kubernetes-unreachable", text).with(detail))
    }

    /// For unusable files or options, before any request.
    pub(super) fn local(trouble: Problem) -> Self {
        Self { status: None, trouble, retry_after: None, is_too_new: false }
    }

    /// `limit` is in bytes.
    pub(super) fn too_large(server: &str, what: &str, limit: usize) -> Self {
        let text = format!(
            "the response of the Kubernetes API at {server} to a request to {what} has more than {limit} bytes"
        );
        let detail = store_detail(StoreCause::Other, None, server);
        let error = Self::local(Problem::new("kubernetes-too-large", text).with(detail));
        Self { status: Some(StatusCode::PAYLOAD_TOO_LARGE), ..error }
    }

    pub(super) fn nonsense(server: &str, what: &str, why: impl Display) -> Self {
        let text = format!(
            "the response of {server} to a request to {what} is not from the Kubernetes API: {why}; check that --kube-api-url or the \
             kubeconfig names an API server"
        );
        let detail = store_detail(StoreCause::Other, None, server);
        Self::local(Problem::new("kubernetes-nonsense", text).with(detail))
    }

    pub(super) fn refused(
        server: &str,
        what: &str,
        status: StatusCode,
        retry_after: Option<Duration>,
        body: &str,
    ) -> Self {
        let RefusedCall { words, is_too_new, forbidden } = RefusedCall::read(status, body);
        let text = format!(
            "the Kubernetes API at {server} refused a request to {what} ({}): {words}{}",
            status.as_u16(),
            remedy_of_refusal(status)
        );
        let detail =
            forbidden.unwrap_or_else(|| store_detail(status::cause(status), Some(status), server));
        let trouble = Problem::new(code_of_refusal(status), text).with(detail);
        Self { status: Some(status), trouble, retry_after, is_too_new }
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
        self.status == Some(StatusCode::GONE) || self.is_too_new
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

fn code_of_refusal(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "kubernetes-credentials",
        StatusCode::FORBIDDEN => "kubernetes-forbidden",
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::INTERNAL_SERVER_ERROR => "kubernetes-unavailable",
        _ => "kubernetes-refused",
    }
}

fn remedy_of_refusal(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            "; the API server does not accept the token or the certificate. Check the expiry of the token or certificate, this host's clock, and whether the service account still exists"
        }
        StatusCode::FORBIDDEN => {
            "; apply the ClusterRole and the ClusterRoleBinding of conf/kube-flannel.yml"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Detail;

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
                (&*failure.trouble.code, [true, false].map(|reads| failure.step(reads))),
                (code, steps),
                "{status}"
            );
            let detail = Detail::Store {
                cause,
                status: Some(status),
                server: Some("https://a:6443".to_owned()),
            };
            assert_eq!(failure.trouble.detail, detail, "{status}");
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
