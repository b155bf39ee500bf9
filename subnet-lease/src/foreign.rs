//! Classifies errors of the system, the resolver and TLS on connections to a server, by errno and error variants. Errors of the resolver are
//! classified by their text, because they contain nothing else.

use rustls::{AlertDescription, CertificateError, InvalidMessage};
use std::error::Error;
use std::io::{self, ErrorKind};
use types::problem::StoreCause;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    Expired,
    NotYetValid,
    /// This node does not know the issuing authority.
    Authority,
    Name,
    Revoked,
    /// The certificate does not permit use by servers.
    Purpose,
    Encoding,
    Other,
}

impl Certificate {
    pub fn of(error: &CertificateError) -> Self {
        use CertificateError as Cause;
        match error {
            Cause::Expired | Cause::ExpiredContext { .. } => Self::Expired,
            Cause::NotValidYet | Cause::NotValidYetContext { .. } => Self::NotYetValid,
            Cause::UnknownIssuer | Cause::BadSignature => Self::Authority,
            Cause::NotValidForName | Cause::NotValidForNameContext { .. } => Self::Name,
            Cause::Revoked => Self::Revoked,
            Cause::InvalidPurpose | Cause::InvalidPurposeContext { .. } => Self::Purpose,
            Cause::BadEncoding => Self::Encoding,
            _ => Self::Other,
        }
    }

    pub fn cause(self) -> StoreCause {
        match self {
            Self::Expired => StoreCause::CertificateExpired,
            Self::NotYetValid => StoreCause::CertificateNotYetValid,
            Self::Authority => StoreCause::CertificateAuthority,
            Self::Name => StoreCause::CertificateName,
            Self::Revoked | Self::Purpose | Self::Encoding | Self::Other => StoreCause::Tls,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// No process listens on the port.
    Refused,
    NoRoute,
    Silent,
    /// The resolver does not know it.
    Name,
    /// This node refuses the server's certificate.
    Certificate(Certificate),
    /// The server refuses this node's certificate, which has expired.
    OwnExpired,
    /// The server does not speak TLS.
    Plain,
    Tls,
    Other,
}

impl ConnectError {
    /// By the first known cause among the error and its sources.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            let failure =
                match (error.downcast_ref::<io::Error>(), error.downcast_ref::<rustls::Error>()) {
                    (Some(error), _) => system(error),
                    (_, Some(error)) => tls(error),
                    _ => None,
                };
            if let Some(failure) = failure {
                return failure;
            }
            next = error.source();
        }
        Self::Other
    }

    pub fn cause(self) -> StoreCause {
        match self {
            Self::Refused => StoreCause::Refused,
            Self::NoRoute => StoreCause::NoRoute,
            Self::Silent => StoreCause::Silent,
            Self::Name => StoreCause::Name,
            Self::Certificate(why) => why.cause(),
            Self::OwnExpired => StoreCause::CertificateExpired,
            Self::Plain | Self::Tls => StoreCause::Tls,
            Self::Other => StoreCause::Other,
        }
    }
}

fn system(error: &io::Error) -> Option<ConnectError> {
    // An error wrapped in an `io::Error` is not among its sources.
    if let Some(inner) = error.get_ref() {
        let failure = ConnectError::of(inner);
        if failure != ConnectError::Other {
            return Some(failure);
        }
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(ConnectError::Refused),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => Some(ConnectError::NoRoute),
        ErrorKind::TimedOut => Some(ConnectError::Silent),
        _ if error.raw_os_error().is_none()
            && error.to_string().starts_with("failed to lookup address information") =>
        {
            Some(ConnectError::Name)
        }
        _ => None,
    }
}

fn tls(error: &rustls::Error) -> Option<ConnectError> {
    Some(match error {
        rustls::Error::InvalidCertificate(why) => ConnectError::Certificate(Certificate::of(why)),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => ConnectError::Plain,
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            ConnectError::OwnExpired
        }
        _ => ConnectError::Tls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classified_by_errno_and_variant() {
        let system = |code: i32| io::Error::from_raw_os_error(code);
        let tls = |error: rustls::Error| io::Error::other(io::Error::other(error));
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        for (error, want) in [
            (system(nix::libc::ECONNREFUSED), StoreCause::Refused),
            (system(nix::libc::ENETUNREACH), StoreCause::NoRoute),
            (system(nix::libc::EHOSTUNREACH), StoreCause::NoRoute),
            (system(nix::libc::ETIMEDOUT), StoreCause::Silent),
            (system(nix::libc::ECONNRESET), StoreCause::Other),
            (tls(expired), StoreCause::CertificateExpired),
            (
                tls(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)),
                StoreCause::CertificateAuthority,
            ),
            (
                tls(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)),
                StoreCause::CertificateExpired,
            ),
            (
                tls(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)),
                StoreCause::Tls,
            ),
            (tls(rustls::Error::DecryptError), StoreCause::Tls),
        ] {
            assert_eq!(ConnectError::of(&error).cause(), want, "{error:?}");
        }
    }

    #[test]
    fn name_that_cannot_be_resolved_is_recognised() {
        let error =
            std::net::ToSocketAddrs::to_socket_addrs("no.such.name.invalid:1").err().unwrap();
        assert_eq!(ConnectError::of(&error), ConnectError::Name, "{error:?}");
    }
}
