//! Why the API server did not respond to a request.

use super::status;
use crate::foreign::{Certificate, ConnectError};
use crate::json::excerpt;
use crate::reason::with_causes;
use http::StatusCode;
use std::time::Duration;
use thiserror::Error;
use types::Detail;
use types::problem::StoreCause;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoResponseError {
    /// With the text of the error and of its causes.
    #[error("{}", connect_text(*.0, .1))]
    Connect(ConnectError, String),
    #[error("no response within {0:?}")]
    NoAnswer(Duration),
    #[error("the response did not end within {0:?}")]
    Unfinished(Duration),
    #[error("the server ended the watch early, as a server does during a shutdown")]
    EndedEarly,
}

impl NoResponseError {
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Connect(ConnectError::of(error), with_causes(error))
    }

    pub(super) fn cause(&self) -> StoreCause {
        match self {
            Self::Connect(failure, _) => failure.cause(),
            Self::NoAnswer(_) | Self::Unfinished(_) => StoreCause::Silent,
            Self::EndedEarly => StoreCause::Other,
        }
    }
}

fn connect_text(error: ConnectError, words: &str) -> String {
    let remedy = match error {
        ConnectError::Certificate(Certificate::Authority) => {
            "the server's certificate is signed by an authority that this node does not know; check the CA of the kubeconfig or service account"
        }
        ConnectError::Certificate(Certificate::Name) => {
            "the server's certificate is for another name; use a name or an address that the certificate contains"
        }
        ConnectError::Certificate(Certificate::Expired) | ConnectError::OwnExpired => {
            "the certificate of the server or of this node has expired, or this host's clock is wrong; renew the certificate or set the clock"
        }
        ConnectError::Certificate(Certificate::NotYetValid) => {
            "the server's certificate is not valid yet; check this host's clock"
        }
        ConnectError::Plain => "the server does not speak TLS; write http:// for a plain port",
        _ => return status::words(words),
    };
    format!("{}: {remedy}", excerpt(words))
}

pub(super) fn store_detail(cause: StoreCause, status: Option<StatusCode>, server: &str) -> Detail {
    Detail::Store {
        cause,
        status: status.map(|status| status.as_u16()),
        server: Some(server.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_tls_have_remedies() {
        let silence =
            |failure, words: &str| NoResponseError::Connect(failure, words.to_owned()).to_string();
        let unknown = silence(
            ConnectError::Certificate(Certificate::Authority),
            "invalid peer certificate: UnknownIssuer",
        );
        assert!(
            unknown.starts_with(
                "invalid peer certificate: UnknownIssuer: the server's certificate is signed by"
            ),
            "{unknown}"
        );
        assert_eq!(silence(ConnectError::Refused, "tcp connect error"), "tcp connect error");
        assert_eq!(silence(ConnectError::Other, ""), "no reason was given");
    }
}
