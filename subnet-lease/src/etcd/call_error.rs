//! Classifies etcd's refusals by etcd's text, or by the gRPC code if there is none. The gRPC code of a refusal differs between etcd versions, and a
//! cancelled watch has only text.

use crate::foreign::ConnectError;
use crate::reason::with_causes;
use thiserror::Error;
use tonic::Code;
use types::problem::StoreCause;

/// From the gRPC status and etcd's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallErrorKind {
    Unreachable(ConnectError),
    /// The server is overloaded or stopping.
    Unavailable,
    /// E.g. after the loss of the quorum.
    NoLeader,
    /// The other members did not reply to the server in time.
    TimedOut,
    Credentials,
    /// The server requires a user.
    NoUser,
    /// The client logs in again before the next request.
    StaleLogIn,
    NoAuthentication,
    Permission,
    /// The database has reached its space quota and refuses writes.
    NoSpace,
    TooLarge,
    /// With the gRPC code.
    Refused(i32),
    /// The client refuses to send the request.
    Client,
}

impl CallErrorKind {
    /// The request may succeed with another log-in or without one.
    pub(crate) fn of_log_in(self) -> bool {
        matches!(
            self,
            CallErrorKind::NoUser | CallErrorKind::StaleLogIn | CallErrorKind::NoAuthentication
        )
    }

    pub(crate) fn is_unavailable(self) -> bool {
        matches!(
            self,
            CallErrorKind::Unavailable | CallErrorKind::NoLeader | CallErrorKind::TimedOut
        )
    }

    pub fn code(self) -> &'static str {
        match self {
            CallErrorKind::Unreachable(_) => "etcd-unreachable",
            CallErrorKind::Unavailable => "etcd-unavailable",
            CallErrorKind::NoLeader => "etcd-no-leader",
            CallErrorKind::TimedOut => "etcd-timed-out",
            CallErrorKind::Credentials => "etcd-wrong-credentials",
            CallErrorKind::NoUser => "etcd-no-user",
            CallErrorKind::StaleLogIn => "etcd-stale-log-in",
            CallErrorKind::NoAuthentication => "etcd-no-authentication",
            CallErrorKind::Permission => "etcd-no-permission",
            CallErrorKind::NoSpace => "etcd-no-space",
            CallErrorKind::TooLarge => "etcd-too-large",
            CallErrorKind::Refused(_) => "etcd-refused",
            CallErrorKind::Client => "etcd-client",
        }
    }

    pub fn cause(self) -> StoreCause {
        match self {
            CallErrorKind::Unreachable(failure) => failure.cause(),
            CallErrorKind::NoLeader => StoreCause::NoQuorum,
            CallErrorKind::TimedOut => StoreCause::Silent,
            CallErrorKind::Credentials | CallErrorKind::NoUser | CallErrorKind::StaleLogIn => {
                StoreCause::User
            }
            CallErrorKind::Permission => StoreCause::Role,
            CallErrorKind::NoSpace => StoreCause::NoSpace,
            CallErrorKind::Unavailable
            | CallErrorKind::NoAuthentication
            | CallErrorKind::TooLarge
            | CallErrorKind::Refused(_)
            | CallErrorKind::Client => StoreCause::Other,
        }
    }
}

/// A call that etcd refused or that failed because of the connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{words}")]
pub struct CallError {
    /// Determines retries and remedies.
    pub kind: CallErrorKind,
    /// Text of etcd, or of the gRPC and connection layers.
    pub words: String,
}

impl From<&etcd_client::Error> for CallError {
    fn from(error: &etcd_client::Error) -> Self {
        Self { kind: kind(error), words: words(error) }
    }
}

impl CallError {
    pub fn cancelled(words: &str) -> Self {
        Self {
            kind: of_words(words).unwrap_or(CallErrorKind::Unavailable),
            words: words.to_owned(),
        }
    }
}

fn kind(error: &etcd_client::Error) -> CallErrorKind {
    use etcd_client::Error;
    match error {
        Error::GRpcStatus(status) => {
            let by_code = match status.code() {
                Code::Unauthenticated => CallErrorKind::StaleLogIn,
                Code::PermissionDenied => CallErrorKind::Permission,
                // Broken connections have one of the following codes. etcd's "no leader" and "request timed out" have the first one.
                Code::Unavailable if status.message().starts_with("etcdserver: ") => {
                    CallErrorKind::Unavailable
                }
                Code::DeadlineExceeded => CallErrorKind::Unreachable(ConnectError::Silent),
                Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled => {
                    CallErrorKind::Unreachable(ConnectError::of(status))
                }
                code => CallErrorKind::Refused(code as i32),
            };
            of_words(status.message()).unwrap_or(by_code)
        }
        Error::LeaseKeepAliveError(text) | Error::WatchError(text) => {
            of_words(text).unwrap_or(CallErrorKind::Unreachable(ConnectError::Other))
        }
        Error::TransportError(error) => CallErrorKind::Unreachable(ConnectError::of(error)),
        Error::IoError(error) => CallErrorKind::Unreachable(ConnectError::of(error)),
        _ => CallErrorKind::Client,
    }
}

fn of_words(text: &str) -> Option<CallErrorKind> {
    const KNOWN: [(&str, CallErrorKind); 15] = [
        ("invalid user ID or password", CallErrorKind::Credentials),
        ("user name is empty", CallErrorKind::NoUser),
        ("invalid auth token", CallErrorKind::StaleLogIn),
        ("revision of auth store is old", CallErrorKind::StaleLogIn),
        ("authentication is not enabled", CallErrorKind::NoAuthentication),
        ("permission denied", CallErrorKind::Permission),
        ("NOSPACE", CallErrorKind::NoSpace),
        ("database space exceeded", CallErrorKind::NoSpace),
        ("message length too large", CallErrorKind::TooLarge),
        ("decoded message length", CallErrorKind::TooLarge),
        ("larger than max", CallErrorKind::TooLarge),
        ("no leader", CallErrorKind::NoLeader),
        ("leader changed", CallErrorKind::NoLeader),
        ("request timed out", CallErrorKind::TimedOut),
        ("too many requests", CallErrorKind::Unavailable),
    ];
    KNOWN.into_iter().find_map(|(words, kind)| text.contains(words).then_some(kind))
}

/// True if etcd itself replied, and would also reply to the next request on this connection.
pub(super) fn is_answer(error: &etcd_client::Error) -> bool {
    match kind(error) {
        // A log-in belongs to its connection. Another log-in needs another connection.
        kind if kind.of_log_in() => false,
        kind if kind.is_unavailable() => false,
        CallErrorKind::Credentials | CallErrorKind::Unreachable(_) => false,
        _ => match error {
            etcd_client::Error::GRpcStatus(status) => matches!(
                status.code(),
                Code::InvalidArgument
                    | Code::NotFound
                    | Code::AlreadyExists
                    | Code::PermissionDenied
                    | Code::ResourceExhausted
                    | Code::FailedPrecondition
                    | Code::OutOfRange
            ),
            etcd_client::Error::LeaseKeepAliveError(_) => true,
            _ => false,
        },
    }
}

/// True if a renewal failed because the lease does not exist. The client library reports this only as text.
pub(super) fn is_no_lease(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::LeaseKeepAliveError(text) if text.contains("not found"))
}

/// etcd's text without that of the intermediate layers. For an error that etcd did not report, the error's text with its causes.
fn words(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) if status.message().starts_with("etcdserver: ") => {
            status.message().to_owned()
        }
        etcd_client::Error::GRpcStatus(status)
            if std::error::Error::source(status).is_none() && !status.message().is_empty() =>
        {
            status.message().to_owned()
        }
        etcd_client::Error::GRpcStatus(status) => with_causes(status),
        etcd_client::Error::TransportError(error) => with_causes(error),
        other => with_causes(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, text: &str) -> etcd_client::Error {
        etcd_client::Error::GRpcStatus(tonic::Status::new(code, text))
    }

    /// Code and text of a refusal, the expected cause, and whether etcd itself replied.
    const REFUSALS: &[(Code, &str, CallErrorKind, bool)] = &[
        (Code::InvalidArgument, "etcdserver: user name is empty", CallErrorKind::NoUser, false),
        (
            Code::InvalidArgument,
            "etcdserver: authentication failed, invalid user ID or password",
            CallErrorKind::Credentials,
            false,
        ),
        (Code::Unauthenticated, "etcdserver: invalid auth token", CallErrorKind::StaleLogIn, false),
        (
            Code::InvalidArgument,
            "etcdserver: revision of auth store is old",
            CallErrorKind::StaleLogIn,
            false,
        ),
        (
            Code::FailedPrecondition,
            "etcdserver: authentication is not enabled",
            CallErrorKind::NoAuthentication,
            false,
        ),
        (Code::PermissionDenied, "etcdserver: permission denied", CallErrorKind::Permission, true),
        (
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
            CallErrorKind::NoSpace,
            true,
        ),
        (
            Code::ResourceExhausted,
            "etcdserver: too many requests",
            CallErrorKind::Unavailable,
            false,
        ),
        (Code::Unavailable, "etcdserver: request timed out", CallErrorKind::TimedOut, false),
        (
            Code::Unavailable,
            "tcp connect error",
            CallErrorKind::Unreachable(ConnectError::Other),
            false,
        ),
        (Code::Unknown, "transport error", CallErrorKind::Unreachable(ConnectError::Other), false),
        (
            Code::OutOfRange,
            "Error, decoded message length too large: found 7 bytes, the limit is: 4 bytes",
            CallErrorKind::TooLarge,
            true,
        ),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
            CallErrorKind::Refused(11),
            true,
        ),
        (Code::NotFound, "etcdserver: requested lease not found", CallErrorKind::Refused(5), true),
    ];

    #[test]
    fn refusals_have_kinds() {
        for &(code, text, want, answer) in REFUSALS {
            let error = status(code, text);
            assert_eq!((kind(&error), is_answer(&error)), (want, answer), "{text}");
            assert_eq!(words(&error), text);
        }
    }
}
