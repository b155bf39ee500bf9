//! What etcd's refusals mean.

use crate::reason::{Kind, with_causes};
use tonic::Code;

/// The kind of a failed call.
pub fn kind(error: &etcd_client::Error) -> Kind {
    use etcd_client::Error;
    match error {
        Error::GRpcStatus(status) => {
            let by_code = match status.code() {
                Code::Unauthenticated => Kind::StaleLogIn,
                Code::PermissionDenied => Kind::Permission,
                // Whatever breaks a connection comes as one of these, etcd's "no leader" and "request timed out" as the first.
                Code::Unavailable if status.message().starts_with("etcdserver: ") => Kind::Unavailable,
                Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded => Kind::Unreachable,
                code => Kind::Refused(code as i32),
            };
            of_words(status.message()).unwrap_or(by_code)
        }
        Error::LeaseKeepAliveError(text) | Error::WatchError(text) => of_words(text).unwrap_or(Kind::Unreachable),
        Error::TransportError(_) | Error::IoError(_) => Kind::Unreachable,
        other => Kind::Said(other.to_string()),
    }
}

/// The kind that etcd's own words name: the same refusal comes with other codes from other versions, and a cancelled watch has words alone.
pub fn of_words(text: &str) -> Option<Kind> {
    const KNOWN: [(&str, Kind); 13] = [
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
        ("no leader", Kind::Unavailable),
        ("too many requests", Kind::Unavailable),
    ];
    KNOWN.into_iter().find_map(|(words, kind)| text.contains(words).then_some(kind))
}

/// Whether etcd itself answered, and would answer the next request on this connection too.
pub fn is_answer(error: &etcd_client::Error) -> bool {
    match kind(error) {
        // A log-in belongs to its connection: another connection, another log-in.
        kind if kind.of_log_in() => false,
        Kind::Credentials | Kind::Unavailable | Kind::Unreachable => false,
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

/// An error in etcd's words, without those of the layers between; with its causes where it did not come from etcd.
pub fn words(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) if status.message().starts_with("etcdserver: ") => status.message().to_owned(),
        etcd_client::Error::GRpcStatus(status) if std::error::Error::source(status).is_none() && !status.message().is_empty() => {
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
            (Code::InvalidArgument, "etcdserver: user name is empty", Kind::NoUser, false),
            (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", Kind::Credentials, false),
            (Code::Unauthenticated, "etcdserver: invalid auth token", Kind::StaleLogIn, false),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", Kind::StaleLogIn, false),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", Kind::NoAuthentication, false),
            (Code::PermissionDenied, "etcdserver: permission denied", Kind::Permission, true),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Kind::NoSpace, true),
            (Code::ResourceExhausted, "etcdserver: too many requests", Kind::Unavailable, false),
            (Code::Unavailable, "etcdserver: request timed out", Kind::Unavailable, false),
            (Code::Unavailable, "tcp connect error", Kind::Unreachable, false),
            (Code::Unknown, "transport error", Kind::Unreachable, false),
            (Code::OutOfRange, "Error, decoded message length too large: found 7 bytes, the limit is: 4 bytes", Kind::TooLarge, true),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", Kind::Refused(11), true),
            (Code::NotFound, "etcdserver: requested lease not found", Kind::Refused(5), true),
        ] {
            let error = status(code, text);
            assert_eq!((kind(&error), is_answer(&error)), (want, answer), "{text}");
            assert_eq!(words(&error), text);
        }
    }
}
