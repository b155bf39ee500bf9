//! Classifies etcd's refusals, by etcd's text if the error has a text, otherwise by the gRPC code. The gRPC code of a
//! refusal differs between etcd versions, and a cancelled watch has only text.

use crate::foreign::ConnectFailure;
use crate::reason::with_causes;
use tonic::Code;
use types::problem::StoreCause;

/// Cause of a failed call, from the gRPC status and etcd's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Failed connection, and therefore no reply from etcd.
    Unreachable(ConnectFailure),
    /// Server that cannot serve requests because it is overloaded or stopping.
    Unavailable,
    /// Cluster without a leader, e.g. after the loss of its quorum.
    NoLeader,
    /// Server that got no reply from the other members in time.
    TimedOut,
    /// Invalid user name or password.
    Credentials,
    /// Request without a user name to a server that requires a user.
    NoUser,
    /// Expired log-in; the client logs in again before the next request.
    StaleLogIn,
    /// Server on which authentication is disabled.
    NoAuthentication,
    /// User without permission for the requested keys.
    Permission,
    /// Database that has reached its space quota and refuses writes.
    NoSpace,
    /// Request or reply that is too large.
    TooLarge,
    /// Refusal by etcd for another reason; contains the gRPC code.
    Refused(i32),
    /// Request that the client refuses to send.
    Client,
}

impl FailureKind {
    /// Returns whether the request may succeed with another log-in or without a log-in.
    pub(crate) fn of_log_in(self) -> bool {
        matches!(
            self,
            FailureKind::NoUser | FailureKind::StaleLogIn | FailureKind::NoAuthentication
        )
    }

    /// Returns whether the server cannot serve requests for now.
    pub(crate) fn is_unavailable(self) -> bool {
        matches!(self, FailureKind::Unavailable | FailureKind::NoLeader | FailureKind::TimedOut)
    }

    /// Returns the stable error code that logs and the doctor use instead of the error text.
    pub fn code(self) -> &'static str {
        match self {
            FailureKind::Unreachable(_) => "etcd-unreachable",
            FailureKind::Unavailable => "etcd-unavailable",
            FailureKind::NoLeader => "etcd-no-leader",
            FailureKind::TimedOut => "etcd-timed-out",
            FailureKind::Credentials => "etcd-wrong-credentials",
            FailureKind::NoUser => "etcd-no-user",
            FailureKind::StaleLogIn => "etcd-stale-log-in",
            FailureKind::NoAuthentication => "etcd-no-authentication",
            FailureKind::Permission => "etcd-no-permission",
            FailureKind::NoSpace => "etcd-no-space",
            FailureKind::TooLarge => "etcd-too-large",
            FailureKind::Refused(_) => "etcd-refused",
            FailureKind::Client => "etcd-client",
        }
    }

    /// Returns the cause for the doctor's finding about the store.
    pub fn cause(self) -> StoreCause {
        match self {
            FailureKind::Unreachable(failure) => failure.cause(),
            FailureKind::NoLeader => StoreCause::NoQuorum,
            FailureKind::TimedOut => StoreCause::Silent,
            FailureKind::Credentials | FailureKind::NoUser | FailureKind::StaleLogIn => {
                StoreCause::User
            }
            FailureKind::Permission => StoreCause::Role,
            FailureKind::NoSpace => StoreCause::NoSpace,
            FailureKind::Unavailable
            | FailureKind::NoAuthentication
            | FailureKind::TooLarge
            | FailureKind::Refused(_)
            | FailureKind::Client => StoreCause::Other,
        }
    }
}

/// A call that etcd refused or that failed because of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Cause, which determines retries and remedies.
    pub kind: FailureKind,
    /// Error text of etcd, or of the gRPC and connection layers.
    pub words: String,
}

impl From<&etcd_client::Error> for Refusal {
    fn from(error: &etcd_client::Error) -> Self {
        Self { kind: kind(error), words: words(error) }
    }
}

impl Refusal {
    /// Creates the refusal of a cancelled watch from etcd's text.
    pub fn cancelled(words: &str) -> Self {
        Self { kind: of_words(words).unwrap_or(FailureKind::Unavailable), words: words.to_owned() }
    }
}

/// Returns the cause of a failed call.
fn kind(error: &etcd_client::Error) -> FailureKind {
    use etcd_client::Error;
    match error {
        Error::GRpcStatus(status) => {
            let by_code = match status.code() {
                Code::Unauthenticated => FailureKind::StaleLogIn,
                Code::PermissionDenied => FailureKind::Permission,
                // Broken connections have one of the following codes. etcd's "no leader" and "request timed out" have the first one.
                Code::Unavailable if status.message().starts_with("etcdserver: ") => {
                    FailureKind::Unavailable
                }
                Code::DeadlineExceeded => FailureKind::Unreachable(ConnectFailure::Silent),
                Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled => {
                    FailureKind::Unreachable(ConnectFailure::of(status))
                }
                code => FailureKind::Refused(code as i32),
            };
            of_words(status.message()).unwrap_or(by_code)
        }
        Error::LeaseKeepAliveError(text) | Error::WatchError(text) => {
            of_words(text).unwrap_or(FailureKind::Unreachable(ConnectFailure::Other))
        }
        Error::TransportError(error) => FailureKind::Unreachable(ConnectFailure::of(error)),
        Error::IoError(error) => FailureKind::Unreachable(ConnectFailure::of(error)),
        _ => FailureKind::Client,
    }
}

/// Returns the cause that etcd's text indicates.
fn of_words(text: &str) -> Option<FailureKind> {
    const KNOWN: [(&str, FailureKind); 15] = [
        ("invalid user ID or password", FailureKind::Credentials),
        ("user name is empty", FailureKind::NoUser),
        ("invalid auth token", FailureKind::StaleLogIn),
        ("revision of auth store is old", FailureKind::StaleLogIn),
        ("authentication is not enabled", FailureKind::NoAuthentication),
        ("permission denied", FailureKind::Permission),
        ("NOSPACE", FailureKind::NoSpace),
        ("database space exceeded", FailureKind::NoSpace),
        ("message length too large", FailureKind::TooLarge),
        ("decoded message length", FailureKind::TooLarge),
        ("larger than max", FailureKind::TooLarge),
        ("no leader", FailureKind::NoLeader),
        ("leader changed", FailureKind::NoLeader),
        ("request timed out", FailureKind::TimedOut),
        ("too many requests", FailureKind::Unavailable),
    ];
    KNOWN.into_iter().find_map(|(words, kind)| text.contains(words).then_some(kind))
}

/// Returns whether etcd itself replied, and would also reply to the next request on this connection.
pub(super) fn is_answer(error: &etcd_client::Error) -> bool {
    match kind(error) {
        // A log-in belongs to its connection. Another log-in needs another connection.
        kind if kind.of_log_in() => false,
        kind if kind.is_unavailable() => false,
        FailureKind::Credentials | FailureKind::Unreachable(_) => false,
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

/// Returns whether a renewal failed because the lease does not exist. The client library reports a missing lease only as text.
pub(super) fn is_no_lease(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::LeaseKeepAliveError(text) if text.contains("not found"))
}

/// Returns etcd's text of an error, without the text of the intermediate layers. For an error that etcd did
/// not report, the function returns the error's text with its causes.
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
    const REFUSALS: &[(Code, &str, FailureKind, bool)] = &[
        (Code::InvalidArgument, "etcdserver: user name is empty", FailureKind::NoUser, false),
        (
            Code::InvalidArgument,
            "etcdserver: authentication failed, invalid user ID or password",
            FailureKind::Credentials,
            false,
        ),
        (Code::Unauthenticated, "etcdserver: invalid auth token", FailureKind::StaleLogIn, false),
        (
            Code::InvalidArgument,
            "etcdserver: revision of auth store is old",
            FailureKind::StaleLogIn,
            false,
        ),
        (
            Code::FailedPrecondition,
            "etcdserver: authentication is not enabled",
            FailureKind::NoAuthentication,
            false,
        ),
        (Code::PermissionDenied, "etcdserver: permission denied", FailureKind::Permission, true),
        (
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
            FailureKind::NoSpace,
            true,
        ),
        (Code::ResourceExhausted, "etcdserver: too many requests", FailureKind::Unavailable, false),
        (Code::Unavailable, "etcdserver: request timed out", FailureKind::TimedOut, false),
        (
            Code::Unavailable,
            "tcp connect error",
            FailureKind::Unreachable(ConnectFailure::Other),
            false,
        ),
        (Code::Unknown, "transport error", FailureKind::Unreachable(ConnectFailure::Other), false),
        (
            Code::OutOfRange,
            "Error, decoded message length too large: found 7 bytes, the limit is: 4 bytes",
            FailureKind::TooLarge,
            true,
        ),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
            FailureKind::Refused(11),
            true,
        ),
        (Code::NotFound, "etcdserver: requested lease not found", FailureKind::Refused(5), true),
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
