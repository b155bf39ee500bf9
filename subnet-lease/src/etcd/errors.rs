//! Classifies etcd's refusals: by etcd's words where it has them, since one refusal comes with other codes from other versions, and a cancelled
//! watch has words alone; else by gRPC's code.

use crate::foreign::ConnectFailure;
use crate::reason::with_causes;
use tonic::Code;
use types::problem::StoreCause;

/// What a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no answer: the connection failed.
    Unreachable(ConnectFailure),
    /// The server cannot serve: it is overloaded or stopping.
    Unavailable,
    /// The server has no leader.
    NoLeader,
    /// The server got no answer from the others in time.
    TimedOut,
    /// Name or password is wrong.
    Credentials,
    /// The server requires a user, and none is configured.
    NoUser,
    /// The log-in is no longer valid; the next request logs in again.
    StaleLogIn,
    /// The server has authentication switched off.
    NoAuthentication,
    /// The user lacks the permission.
    Permission,
    /// The store is full.
    NoSpace,
    /// The request or the answer is too large.
    TooLarge,
    /// The store refuses for another cause, with this code.
    Refused(i32),
    /// The client refuses to ask.
    Client,
}

impl Kind {
    /// Whether another log-in, or none, would help.
    pub fn of_log_in(self) -> bool {
        matches!(
            self,
            Kind::NoUser | Kind::StaleLogIn | Kind::NoAuthentication
        )
    }

    /// Whether the server cannot serve for now.
    pub fn is_unavailable(self) -> bool {
        matches!(self, Kind::Unavailable | Kind::NoLeader | Kind::TimedOut)
    }

    /// Its code.
    pub fn code(self) -> &'static str {
        match self {
            Kind::Unreachable(_) => "etcd-unreachable",
            Kind::Unavailable => "etcd-unavailable",
            Kind::NoLeader => "etcd-no-leader",
            Kind::TimedOut => "etcd-timed-out",
            Kind::Credentials => "etcd-wrong-credentials",
            Kind::NoUser => "etcd-no-user",
            Kind::StaleLogIn => "etcd-stale-log-in",
            Kind::NoAuthentication => "etcd-no-authentication",
            Kind::Permission => "etcd-no-permission",
            Kind::NoSpace => "etcd-no-space",
            Kind::TooLarge => "etcd-too-large",
            Kind::Refused(_) => "etcd-refused",
            Kind::Client => "etcd-client",
        }
    }

    /// What it means for the store.
    pub fn cause(self) -> StoreCause {
        match self {
            Kind::Unreachable(way) => way.cause(),
            Kind::NoLeader => StoreCause::NoQuorum,
            Kind::TimedOut => StoreCause::Silent,
            Kind::Credentials | Kind::NoUser | Kind::StaleLogIn => StoreCause::User,
            Kind::Permission => StoreCause::Role,
            Kind::NoSpace => StoreCause::NoSpace,
            Kind::Unavailable
            | Kind::NoAuthentication
            | Kind::TooLarge
            | Kind::Refused(_)
            | Kind::Client => StoreCause::Other,
        }
    }
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it is about.
    pub kind: Kind,
    /// etcd's words, or those of the layers between.
    pub words: String,
}

impl From<&etcd_client::Error> for Refusal {
    fn from(error: &etcd_client::Error) -> Self {
        Self {
            kind: kind(error),
            words: words(error),
        }
    }
}

impl Refusal {
    /// A cancelled watch.
    pub fn cancelled(words: &str) -> Self {
        Self {
            kind: of_words(words).unwrap_or(Kind::Unavailable),
            words: words.to_owned(),
        }
    }
}

/// The kind of a failed call.
fn kind(error: &etcd_client::Error) -> Kind {
    use etcd_client::Error;
    match error {
        Error::GRpcStatus(status) => {
            let by_code = match status.code() {
                Code::Unauthenticated => Kind::StaleLogIn,
                Code::PermissionDenied => Kind::Permission,
                // Whatever breaks a connection comes as one of these, etcd's "no leader" and "request timed out" as the first.
                Code::Unavailable if status.message().starts_with("etcdserver: ") => {
                    Kind::Unavailable
                }
                Code::DeadlineExceeded => Kind::Unreachable(ConnectFailure::Silent),
                Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled => {
                    Kind::Unreachable(ConnectFailure::of(status))
                }
                code => Kind::Refused(code as i32),
            };
            of_words(status.message()).unwrap_or(by_code)
        }
        Error::LeaseKeepAliveError(text) | Error::WatchError(text) => {
            of_words(text).unwrap_or(Kind::Unreachable(ConnectFailure::Other))
        }
        Error::TransportError(error) => Kind::Unreachable(ConnectFailure::of(error)),
        Error::IoError(error) => Kind::Unreachable(ConnectFailure::of(error)),
        _ => Kind::Client,
    }
}

/// The kind that etcd's own words name.
fn of_words(text: &str) -> Option<Kind> {
    const KNOWN: [(&str, Kind); 15] = [
        ("invalid user ID or password", Kind::Credentials),
        ("user name is empty", Kind::NoUser),
        ("invalid auth token", Kind::StaleLogIn),
        ("revision of auth store is old", Kind::StaleLogIn),
        ("authentication is not enabled", Kind::NoAuthentication),
        ("permission denied", Kind::Permission),
        ("NOSPACE", Kind::NoSpace),
        ("database space exceeded", Kind::NoSpace),
        ("message length too large", Kind::TooLarge),
        ("decoded message length", Kind::TooLarge),
        ("larger than max", Kind::TooLarge),
        ("no leader", Kind::NoLeader),
        ("leader changed", Kind::NoLeader),
        ("request timed out", Kind::TimedOut),
        ("too many requests", Kind::Unavailable),
    ];
    KNOWN
        .into_iter()
        .find_map(|(words, kind)| text.contains(words).then_some(kind))
}

/// Whether etcd itself answered, and would answer the next request on this connection too.
pub fn is_answer(error: &etcd_client::Error) -> bool {
    match kind(error) {
        // A log-in belongs to its connection: another connection, another log-in.
        kind if kind.of_log_in() => false,
        kind if kind.is_unavailable() => false,
        Kind::Credentials | Kind::Unreachable(_) => false,
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

/// Whether a lease that was to be renewed does not exist: etcd's client has words alone.
pub fn is_no_lease(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::LeaseKeepAliveError(text) if text.contains("not found"))
}

/// An error in etcd's words, without those of the layers between; with its causes where it did not come from etcd.
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

    #[test]
    fn refusals_have_kinds() {
        for (code, text, want, answer) in [
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                Kind::NoUser,
                false,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                Kind::Credentials,
                false,
            ),
            (
                Code::Unauthenticated,
                "etcdserver: invalid auth token",
                Kind::StaleLogIn,
                false,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                Kind::StaleLogIn,
                false,
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: authentication is not enabled",
                Kind::NoAuthentication,
                false,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                Kind::Permission,
                true,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                Kind::NoSpace,
                true,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                Kind::Unavailable,
                false,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out",
                Kind::TimedOut,
                false,
            ),
            (
                Code::Unavailable,
                "tcp connect error",
                Kind::Unreachable(ConnectFailure::Other),
                false,
            ),
            (
                Code::Unknown,
                "transport error",
                Kind::Unreachable(ConnectFailure::Other),
                false,
            ),
            (
                Code::OutOfRange,
                "Error, decoded message length too large: found 7 bytes, the limit is: 4 bytes",
                Kind::TooLarge,
                true,
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                Kind::Refused(11),
                true,
            ),
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                Kind::Refused(5),
                true,
            ),
        ] {
            let error = status(code, text);
            assert_eq!((kind(&error), is_answer(&error)), (want, answer), "{text}");
            assert_eq!(words(&error), text);
        }
    }
}
