//! Errors of TLS between this node and etcd.

use crate::foreign::Certificate;
use crate::reason::Lasting;
use std::fmt;
use std::path::PathBuf;
use types::problem::StoreCause;
use types::{Coded, Detail};

/// Certificate that a file should contain: the authority's certificate or this node's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOf {
    /// The authority's certificate.
    Authority,
    /// This node's certificate.
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

/// Reason why etcd refuses this node's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Expired certificate.
    Expired,
    /// Revoked certificate.
    Revoked,
    /// Issuing authority that is unknown to etcd.
    Authority,
    /// Another reason for which etcd refuses the certificate.
    Invalid,
}

/// Reason why etcd aborts a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortCause {
    /// Lack of TLS parameters that both this node and etcd support.
    Parameters,
    /// Lack of a TLS version that both this node and etcd support.
    Version,
    /// Requested server name that etcd does not serve.
    Name,
    /// etcd server that does not speak HTTP/2.
    Http2,
    /// Error that occurred inside etcd.
    Internal,
    /// Another reason for which etcd aborts the handshake.
    Other,
}

/// Reason why TLS or its setup fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsTrouble {
    /// Unreadable file, with the system's error.
    Unread(PathBuf, String),
    /// File that is not in PEM form.
    NotPem(FileOf, PathBuf),
    /// File that contains no certificate.
    NoCertificate(FileOf, PathBuf),
    /// File that contains no key.
    NoKey(PathBuf),
    /// File that contains no usable authority.
    NoAuthority(PathBuf),
    /// Lack of certificate authorities on this system.
    NoSystemAuthorities,
    /// Key that belongs to another certificate.
    OtherKey {
        /// File of the private key.
        key: PathBuf,
        /// File of the certificate.
        certificate: PathBuf,
    },
    /// Unusable certificate and key of this node.
    Identity {
        /// File of the private key.
        key: PathBuf,
        /// File of the certificate.
        certificate: PathBuf,
        /// Text of rustls' error.
        fault: String,
    },
    /// Unusable trusted authorities, with rustls' error.
    Authorities(String),
    /// Failed setup of TLS, with rustls' error.
    Setup(String),
    /// Refusal of etcd's certificate by this node.
    ServerCertificate {
        /// Subject, issuer and validity of the refused certificate; `None` if etcd sent no certificate.
        seen: Option<String>,
        /// Reason for the refusal.
        why: Certificate,
        /// Time of this node's clock, for comparison with the certificate's validity.
        clock: String,
        /// File of the trusted authorities; `None` for the authorities of the system.
        ca: Option<PathBuf>,
        /// The names in the certificate.
        names: Vec<String>,
        /// Text of rustls' error.
        words: String,
    },
    /// Refusal of this node's certificate by etcd.
    ClientCertificate {
        /// File of this node's certificate.
        path: PathBuf,
        /// Subject, issuer and validity of this node's certificate.
        own: String,
        /// Reason for the refusal.
        why: Refusal,
    },
    /// Lack of the client certificate that etcd requires.
    NoClientCertificate,
    /// Connection that etcd closes without a stated reason, although this node has a certificate.
    MostLikelyRefused {
        /// File of this node's certificate.
        path: PathBuf,
        /// Subject, issuer and validity of this node's certificate.
        own: String,
    },
    /// Connection that etcd closes without a stated reason; this node has no certificate.
    MostLikelyNoClient,
    /// Abort of the handshake by etcd, with a TLS alert.
    Aborted {
        /// Reason for the abort.
        cause: AbortCause,
        /// Number of the TLS alert (RFC 8446, section 6).
        alert: u8,
    },
    /// Failed TLS handshake, with the error's text.
    Handshake(String),
    /// Failure of TLS for another reason, with rustls' error.
    Failed(String),
    /// etcd server that does not speak TLS.
    ServerIsPlain,
    /// etcd server that requires TLS, although this node connects without TLS.
    ServerWantsTls,
}

impl Coded for TlsTrouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Unread(..) => "tls-file-unreadable",
            Self::NotPem(..) => "tls-file-not-pem",
            Self::NoCertificate(..) => "tls-file-without-certificate",
            Self::NoKey(_) => "tls-file-without-key",
            Self::NoAuthority(_) => "tls-file-without-authority",
            Self::NoSystemAuthorities => "tls-no-system-authorities",
            Self::OtherKey { .. } => "tls-key-of-another-certificate",
            Self::Identity { .. } => "tls-identity-unusable",
            Self::Authorities(_) => "tls-authorities-unusable",
            Self::Setup(_) => "tls-setup",
            Self::ServerCertificate { why, .. } => match why {
                Certificate::Expired => "etcd-certificate-expired",
                Certificate::NotYetValid => "etcd-certificate-not-yet-valid",
                Certificate::Authority => "etcd-certificate-unknown-authority",
                Certificate::Name => "etcd-certificate-other-name",
                Certificate::Revoked => "etcd-certificate-revoked",
                Certificate::Purpose => "etcd-certificate-purpose",
                Certificate::Encoding => "etcd-certificate-encoding",
                Certificate::Other => "etcd-certificate-refused",
            },
            Self::ClientCertificate { .. } | Self::MostLikelyRefused { .. } => {
                "etcd-refuses-client-certificate"
            }
            Self::NoClientCertificate | Self::MostLikelyNoClient => "etcd-wants-client-certificate",
            Self::Aborted { .. } | Self::Handshake(_) | Self::Failed(_) => "etcd-tls-failed",
            Self::ServerIsPlain => "etcd-speaks-no-tls",
            Self::ServerWantsTls => "etcd-speaks-tls",
        }
    }

    fn detail(&self) -> Detail {
        Detail::Store { cause: self.cause(), status: None, server: None }
    }
}

impl TlsTrouble {
    /// Returns the cause that the doctor's finding about the store names.
    pub fn cause(&self) -> StoreCause {
        match self {
            Self::ServerCertificate { why, .. } => why.cause(),
            Self::ClientCertificate { why, .. } => match why {
                Refusal::Expired => StoreCause::CertificateExpired,
                Refusal::Authority | Refusal::Invalid => StoreCause::CertificateAuthority,
                Refusal::Revoked => StoreCause::Tls,
            },
            Self::NoClientCertificate | Self::MostLikelyNoClient => StoreCause::User,
            _ => StoreCause::Tls,
        }
    }
}

impl fmt::Display for TlsTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread(path, error) => write!(f, "cannot read the TLS file {}: {error}", path.display()),
            Self::NotPem(of, path) => write!(f, "the {} {} is not in PEM form; correct {}", of.what(), path.display(), of.flag()),
            Self::NoCertificate(of, path) => {
                write!(f, "the file {} holds no certificate; correct {}, which must name a {} in PEM form", path.display(), of.flag(), of.what())
            }
            Self::NoKey(path) => write!(f, "the file {} holds no private key in PEM form; correct --etcd-keyfile", path.display()),
            Self::NoAuthority(path) => write!(f, "no certificate in {} is usable as an authority; correct --etcd-cafile", path.display()),
            Self::NoSystemAuthorities => {
                f.write_str("this system has no certificate authorities; name etcd's authority with --etcd-cafile, or install ca-certificates")
            }
            Self::OtherKey { key, certificate } => write!(
                f,
                "the key {} does not belong to the certificate {}; name a key and certificate that belong together",
                key.display(),
                certificate.display()
            ),
            Self::Identity { key, certificate, fault } => {
                write!(f, "cannot use the client certificate {} with the key {}: {fault}", certificate.display(), key.display())
            }
            Self::Authorities(error) => write!(f, "cannot use the certificate authorities: {error}"),
            Self::Setup(error) => write!(f, "cannot set up TLS: {error}"),
            Self::ServerCertificate { seen, .. } => {
                f.write_str("this node refuses etcd's certificate")?;
                if let Some(seen) = seen {
                    write!(f, " ({seen})")?;
                }
                f.write_str(": ")?;
                self.remedy(f)
            }
            Self::ClientCertificate { path, own, why } => {
                let why = match why {
                    Refusal::Expired => "the certificate has expired; renew the certificate",
                    Refusal::Revoked => "the certificate was revoked; renew the certificate",
                    Refusal::Authority => "etcd does not know the certificate's authority; use a certificate of an authority in etcd's --trusted-ca-file",
                    Refusal::Invalid => "use a valid client certificate, signed by an authority in etcd's --trusted-ca-file",
                };
                write!(f, "etcd refuses this node's certificate {} ({own}): {why}", path.display())
            }
            Self::NoClientCertificate => {
                f.write_str("etcd requires a client certificate and this node has none; set --etcd-certfile and --etcd-keyfile")
            }
            Self::MostLikelyRefused { path, own } => write!(
                f,
                "etcd closes the connection after the TLS handshake, most likely because it refuses this node's certificate {} ({own})",
                path.display()
            ),
            Self::MostLikelyNoClient => f.write_str(
                "etcd closes the connection after the TLS handshake, most likely because it requires a client certificate; set --etcd-certfile and \
                 --etcd-keyfile",
            ),
            Self::Aborted { cause, alert } => {
                let what = match cause {
                    AbortCause::Parameters => "the two sides have no TLS parameters (cipher suite, signature, key exchange) in common",
                    AbortCause::Version => "the two sides have no TLS version in common",
                    AbortCause::Name => "etcd does not serve the requested server name",
                    AbortCause::Http2 => "etcd does not speak HTTP/2",
                    AbortCause::Internal => "an error inside etcd",
                    AbortCause::Other => "for another reason",
                };
                write!(f, "etcd aborts the TLS handshake: {what} (alert {alert})")
            }
            Self::Handshake(error) => write!(f, "the TLS handshake failed: {error}"),
            Self::Failed(error) => write!(f, "TLS to etcd failed: {error}"),
            Self::ServerIsPlain => {
                f.write_str("etcd does not speak TLS at this endpoint; write http:// in --etcd-endpoints, or give etcd a certificate (--cert-file)")
            }
            Self::ServerWantsTls => {
                f.write_str("etcd speaks TLS at this endpoint; write https:// in --etcd-endpoints, and name etcd's authority with --etcd-cafile")
            }
        }
    }
}

impl TlsTrouble {
    /// Writes the reason why etcd's certificate is invalid, and the remedy.
    fn remedy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::ServerCertificate { why, clock, ca, names, words, .. } = self else {
            return Ok(());
        };
        match why {
            Certificate::Expired => write!(f, "the certificate has expired (this node's clock: {clock}); renew it on etcd's side, or set the clock"),
            Certificate::NotYetValid => write!(f, "the certificate is not valid yet (this node's clock: {clock}); set the clock"),
            Certificate::Authority => {
                match ca {
                    Some(ca) => write!(f, "an authority in {}", ca.display())?,
                    None => f.write_str("the authorities of this system")?,
                }
                f.write_str(" did not sign the certificate; set the authority that signed it with --etcd-cafile")
            }
            Certificate::Name => {
                let names = if names.is_empty() { "another name".to_owned() } else { names.join(", ") };
                write!(f, "the certificate is issued for {names}; use one of those names in --etcd-endpoints, or reissue the certificate for the endpoint's name")
            }
            Certificate::Revoked => f.write_str("the certificate was revoked; renew it on etcd's side"),
            Certificate::Purpose => f.write_str("the certificate does not permit use by servers (extended key usage serverAuth); reissue it on etcd's side"),
            Certificate::Encoding => f.write_str("the certificate is unreadable; reissue it on etcd's side"),
            Certificate::Other => f.write_str(words),
        }
    }
}

impl Lasting for TlsTrouble {
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
