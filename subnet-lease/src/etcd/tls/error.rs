//! Errors of TLS between this node and etcd.

use crate::foreign::Certificate;
use std::path::Path;
use thiserror::Error;
use types::problem::StoreCause;

/// Its text names the files, and the subject, issuer and validity of the certificates.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct TlsError {
    pub code: &'static str,
    pub text: String,
    /// The doctor's finding about the store names it.
    pub cause: StoreCause,
}

impl TlsError {
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), cause: StoreCause::Tls }
    }
}

pub(super) fn code_of_refusal(why: Certificate) -> &'static str {
    match why {
        Certificate::Expired => "etcd-certificate-expired",
        Certificate::NotYetValid => "etcd-certificate-not-yet-valid",
        Certificate::Authority => "etcd-certificate-unknown-authority",
        Certificate::Name => "etcd-certificate-other-name",
        Certificate::Revoked => "etcd-certificate-revoked",
        Certificate::Purpose => "etcd-certificate-purpose",
        Certificate::Encoding => "etcd-certificate-encoding",
        Certificate::Other => "etcd-certificate-refused",
    }
}

pub(super) fn refusal_text(
    why: Certificate,
    clock: &str,
    ca: Option<&Path>,
    names: &[String],
    words: &str,
) -> String {
    match why {
        Certificate::Expired => format!(
            "the certificate has expired (this node's clock: {clock}); renew it on etcd's side, or set the clock"
        ),
        Certificate::NotYetValid => format!(
            "the certificate is not valid yet (this node's clock: {clock}); set the clock"
        ),
        Certificate::Authority => {
            let authorities = ca.map_or_else(
                || "the authorities of this system".to_owned(),
                |ca| format!("an authority in {}", ca.display()),
            );
            format!(
                "{authorities} did not sign the certificate; set the authority that signed it with --etcd-cafile"
            )
        }
        Certificate::Name => {
            let names = if names.is_empty() { "another name".to_owned() } else { names.join(", ") };
            format!(
                "the certificate is issued for {names}; use one of those names in --etcd-endpoints, or reissue the certificate for the endpoint's name"
            )
        }
        Certificate::Revoked => {
            "the certificate was revoked; renew it on etcd's side".to_owned()
        }
        Certificate::Purpose => {
            "the certificate does not permit use by servers (extended key usage serverAuth); reissue it on etcd's side"
                .to_owned()
        }
        Certificate::Encoding => {
            "the certificate is unreadable; reissue it on etcd's side".to_owned()
        }
        Certificate::Other => words.to_owned(),
    }
}
