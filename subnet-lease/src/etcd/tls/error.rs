//! Errors of TLS between this node and etcd.

use crate::foreign::Certificate;
use crate::reason::Lasting;
use std::path::{Path, PathBuf};
use thiserror::Error;
use types::problem::StoreCause;
use types::{Coded, Detail};

/// Which certificate a file should contain: that of the authority or this node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOf {
    Authority,
    Client,
}

impl FileOf {
    fn what(self) -> &'static str {
        match self {
            FileOf::Authority => "certificate authority",
            FileOf::Client => "client certificate",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            FileOf::Authority => "--etcd-cafile",
            FileOf::Client => "--etcd-certfile",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClientCertificateError {
    #[error("the certificate has expired; renew the certificate")]
    Expired,
    #[error("the certificate was revoked; renew the certificate")]
    Revoked,
    #[error(
        "etcd does not know the certificate's authority; use a certificate of an authority in etcd's --trusted-ca-file"
    )]
    Authority,
    #[error("use a valid client certificate, signed by an authority in etcd's --trusted-ca-file")]
    Invalid,
}

/// `own` and `seen` are subject, issuer and validity of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[detail(Detail::Store { cause: self.cause(), status: None, server: None })]
pub enum TlsError {
    #[error("cannot read the TLS file {0}: {1}")]
    #[code("tls-file-unreadable")]
    Unread(PathBuf, String),
    #[error("the {what} {1} is not in PEM form; correct {flag}", what = .0.what(), flag = .0.flag())]
    #[code("tls-file-not-pem")]
    NotPem(FileOf, PathBuf),
    #[error(
        "the file {1} holds no certificate; correct {flag}, which must name a {what} in PEM form",
        flag = .0.flag(), what = .0.what()
    )]
    #[code("tls-file-without-certificate")]
    NoCertificate(FileOf, PathBuf),
    #[error("the file {0} holds no private key in PEM form; correct --etcd-keyfile")]
    #[code("tls-file-without-key")]
    NoKey(PathBuf),
    #[error("no certificate in {0} is usable as an authority; correct --etcd-cafile")]
    #[code("tls-file-without-authority")]
    NoAuthority(PathBuf),
    #[error(
        "this system has no certificate authorities; name etcd's authority with --etcd-cafile, or install ca-certificates"
    )]
    #[code("tls-no-system-authorities")]
    NoSystemAuthorities,
    #[error(
        "the key {key} does not belong to the certificate {certificate}; name a key and certificate that belong together"
    )]
    #[code("tls-key-of-another-certificate")]
    OtherKey { key: PathBuf, certificate: PathBuf },
    #[error("cannot use the client certificate {certificate} with the key {key}: {fault}")]
    #[code("tls-identity-unusable")]
    Identity { key: PathBuf, certificate: PathBuf, fault: String },
    #[error("cannot use the certificate authorities: {0}")]
    #[code("tls-authorities-unusable")]
    Authorities(String),
    #[error("cannot set up TLS: {0}")]
    #[code("tls-setup")]
    Setup(String),
    /// `seen` is `None` if etcd sent no certificate, and `ca` for the authorities of the system. `clock` is this node's time.
    #[error(
        "this node refuses etcd's certificate{}: {}",
        seen.as_ref().map_or_else(String::new, |seen| format!(" ({seen})")),
        refusal_text(*why, clock, ca.as_deref(), names, words)
    )]
    #[code(code_of_refusal(*why))]
    ServerCertificate {
        seen: Option<String>,
        why: Certificate,
        clock: String,
        ca: Option<PathBuf>,
        names: Vec<String>,
        words: String,
    },
    #[error("etcd refuses this node's certificate {path} ({own}): {why}")]
    #[code("etcd-refuses-client-certificate")]
    ClientCertificate { path: PathBuf, own: String, why: ClientCertificateError },
    #[error(
        "etcd requires a client certificate and this node has none; set --etcd-certfile and --etcd-keyfile"
    )]
    #[code("etcd-wants-client-certificate")]
    NoClientCertificate,
    #[error(
        "etcd closes the connection after the TLS handshake, most likely because it refuses this node's certificate {path} ({own})"
    )]
    #[code("etcd-refuses-client-certificate")]
    MostLikelyRefused { path: PathBuf, own: String },
    #[error(
        "etcd closes the connection after the TLS handshake, most likely because it requires a client certificate; set --etcd-certfile and \
         --etcd-keyfile"
    )]
    #[code("etcd-wants-client-certificate")]
    MostLikelyNoClient,
    /// `alert` is the number of the TLS alert (RFC 8446, section 6).
    #[error("etcd aborts the TLS handshake: {why} (alert {alert})")]
    #[code("etcd-tls-failed")]
    Aborted { why: &'static str, alert: u8 },
    #[error("the TLS handshake failed: {0}")]
    #[code("etcd-tls-failed")]
    Handshake(String),
    #[error("TLS to etcd failed: {0}")]
    #[code("etcd-tls-failed")]
    Failed(String),
    #[error(
        "etcd does not speak TLS at this endpoint; write http:// in --etcd-endpoints, or give etcd a certificate (--cert-file)"
    )]
    #[code("etcd-speaks-no-tls")]
    ServerIsPlain,
    #[error(
        "etcd speaks TLS at this endpoint; write https:// in --etcd-endpoints, and name etcd's authority with --etcd-cafile"
    )]
    #[code("etcd-speaks-tls")]
    ServerWantsTls,
}

impl TlsError {
    /// The doctor's finding about the store names it.
    pub fn cause(&self) -> StoreCause {
        match self {
            Self::ServerCertificate { why, .. } => why.cause(),
            Self::ClientCertificate { why, .. } => match why {
                ClientCertificateError::Expired => StoreCause::CertificateExpired,
                ClientCertificateError::Authority | ClientCertificateError::Invalid => {
                    StoreCause::CertificateAuthority
                }
                ClientCertificateError::Revoked => StoreCause::Tls,
            },
            Self::NoClientCertificate | Self::MostLikelyNoClient => StoreCause::User,
            _ => StoreCause::Tls,
        }
    }
}

fn code_of_refusal(why: Certificate) -> &'static str {
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

fn refusal_text(
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

impl Lasting for TlsError {
    fn topic(&self) -> String {
        match self {
            // Their texts contain the time, or what etcd reports in more than one form.
            Self::ServerCertificate { .. }
            | Self::ClientCertificate { .. }
            | Self::MostLikelyRefused { .. }
            | Self::NoClientCertificate
            | Self::MostLikelyNoClient
            | Self::Aborted { .. }
            | Self::Handshake(_)
            | Self::Failed(_) => self.code().to_owned(),
            _ => self.to_string(),
        }
    }
}
