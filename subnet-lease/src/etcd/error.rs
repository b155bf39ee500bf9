//! Errors of one etcd endpoint, and errors of all endpoints together.

use super::call_error::{CallError, CallErrorKind};
use super::tls::error::TlsError;
use crate::foreign::ConnectError;
use std::time::Duration;
use thiserror::Error;
use types::problem::StoreCause;
use types::{Coded, Detail, Problem};

/// Request or handshake to which an endpoint did not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Anything,
    Handshake,
    /// With the name of the etcd user.
    LogIn(String),
}

impl Asked {
    fn text(&self) -> String {
        match self {
            Asked::Anything => String::new(),
            Asked::Handshake => " to the TLS handshake".to_owned(),
            Asked::LogIn(user) => format!(" to the log-in as user {user}"),
        }
    }
}

/// Permission, log-in or database space that the refused request lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    Nothing,
    /// On the keys below a prefix, e.g. `/coreos.com/network`. The user is `None` for that of the client certificate.
    Right {
        user: Option<String>,
        prefix: String,
    },
    LogIn,
    Space,
}

impl Lack {
    fn text(&self) -> String {
        match self {
            Lack::Nothing => String::new(),
            Lack::Right { user, prefix } => {
                let user = user.as_deref().unwrap_or("the client certificate's user");
                format!(
                    " ({user} needs read on {prefix}/config and readwrite on {prefix}/subnets/)"
                )
            }
            Lack::LogIn => {
                " (this etcd requires a user; set --etcd-username and --etcd-password)".to_owned()
            }
            Lack::Space => {
                " (etcd's NOSPACE alarm; compact and defragment etcd, and disarm the alarm)"
                    .to_owned()
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[detail(store_detail(self.cause(), None))]
pub enum EndpointError {
    #[error("this host's addresses changed during the request")]
    #[code("etcd-readdressed")]
    Readdressed,
    #[error("no response{request} within {1:?}", request = .0.text())]
    #[code("etcd-no-answer")]
    NoAnswer(Asked, Duration),
    #[error("no connection within {0:?}")]
    #[code("etcd-no-connection")]
    NoConnection(Duration),
    /// With the error's text.
    #[error("{1}")]
    #[code("etcd-unreachable")]
    Unreachable(ConnectError, String),
    #[error("not a usable address: {0}")]
    #[code("etcd-no-address")]
    NoAddress(String),
    #[error(transparent)]
    #[code(_0.code)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    #[code(_0.kind.code())]
    Call(#[from] CallError),
    /// With the name of the etcd user.
    #[error("log-in as user {0} failed: {1}")]
    #[code(_1.kind.code())]
    LogIn(String, CallError),
    /// `lack` explains the refusal.
    #[error("refused {key}: {refusal}{}", lack.text())]
    #[code(refusal.kind.code())]
    Key { key: String, refusal: CallError, lack: Lack },
    #[error(
        "the endpoint belongs to another etcd cluster ({cluster:x}) than the cluster in use ({known:x}), so flanneld does not use it. Correct --etcd-endpoints. If etcd was rebuilt and an endpoint never responds, restart flanneld"
    )]
    #[code("etcd-foreign-cluster")]
    ForeignCluster { cluster: u64, known: u64 },
}

impl EndpointError {
    /// `None` if etcd did not refuse the request.
    pub fn kind(&self) -> Option<CallErrorKind> {
        match self {
            Self::Call(refusal) | Self::LogIn(_, refusal) | Self::Key { refusal, .. } => {
                Some(refusal.kind)
            }
            _ => None,
        }
    }

    fn cause(&self) -> StoreCause {
        match self {
            Self::NoAnswer(..) | Self::NoConnection(_) => StoreCause::Silent,
            Self::Unreachable(failure, _) => failure.cause(),
            Self::Tls(trouble) => trouble.cause,
            Self::Call(refusal) | Self::LogIn(_, refusal) | Self::Key { refusal, .. } => {
                refusal.kind.cause()
            }
            Self::Readdressed | Self::NoAddress(_) | Self::ForeignCluster { .. } => {
                StoreCause::Other
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum EtcdError {
    /// In the configured order.
    #[error("cannot reach etcd at {}", .0.iter().map(|(endpoint, why)| format!("{endpoint}: {why}")).collect::<Vec<_>>().join("; "))]
    #[code("etcd-unreachable")]
    #[detail(match _0.iter().min_by_key(|(_, error)| error.cause()) {
        Some((endpoint, error)) => store_detail(error.cause(), Some(endpoint)),
        None => store_detail(StoreCause::Other, None),
    })]
    #[parts(_0.iter().map(|(_, error)| Problem::of(error)).collect())]
    Endpoints(Vec<(String, EndpointError)>),
    /// The endpoint belongs to another cluster than the one in use.
    #[error("etcd at {0}: {1}")]
    #[code(_1.code())]
    #[detail(store_detail(_1.cause(), Some(_0)))]
    Foreign(String, EndpointError),
    #[error("etcd at {0} {1}")]
    #[code(_1.code())]
    #[detail(store_detail(_1.cause(), Some(_0)))]
    Refused(String, EndpointError),
    #[error(
        "the connection to etcd at {0} was closed: this host no longer has the connection's local address"
    )]
    #[code("etcd-connection-cut")]
    #[detail(store_detail(StoreCause::Other, Some(_0)))]
    Cut(String),
    #[error("etcd at {0} did not respond within {1:?}")]
    #[code("etcd-no-answer")]
    #[detail(store_detail(StoreCause::Silent, Some(_0)))]
    NoAnswer(String, Duration),
    #[error("etcd at {0} did not report the state of a lease: {1}")]
    #[code(_1.kind.code())]
    #[detail(store_detail(_1.kind.cause(), Some(_0)))]
    LeaseState(String, CallError),
    #[error("etcd closed the watch")]
    #[code("etcd-watch-closed")]
    #[detail(store_detail(StoreCause::Other, None))]
    WatchClosed,
    #[error("etcd did not open the watch within {0:?}")]
    #[code("etcd-watch-not-opened")]
    #[detail(store_detail(StoreCause::Silent, None))]
    WatchNotOpened(Duration),
    /// Not even the requested progress notification arrives.
    #[error("the watch delivers no messages")]
    #[code("etcd-watch-silent")]
    #[detail(store_detail(StoreCause::Silent, None))]
    WatchSilent,
    /// A request during the setup of a watch.
    #[error("no response")]
    #[code("etcd-no-answer")]
    #[detail(store_detail(StoreCause::Silent, None))]
    WatchUnanswered,
    #[error(transparent)]
    #[code(_0.kind.code())]
    #[detail(store_detail(_0.kind.cause(), None))]
    Watch(CallError),
    #[error("etcd cancelled the watch: {0}")]
    #[code(_0.kind.code())]
    #[detail(store_detail(_0.kind.cause(), None))]
    WatchCancelled(CallError),
}

fn store_detail(cause: StoreCause, server: Option<&String>) -> Detail {
    Detail::Store { cause, status: None, server: server.cloned() }
}

impl EtcdError {
    /// An endpoint refused the request for a reason that satisfies `wanted`.
    pub fn has(&self, wanted: impl Fn(CallErrorKind) -> bool) -> bool {
        match self {
            Self::Endpoints(all) => {
                all.iter().any(|(_, trouble)| trouble.kind().is_some_and(&wanted))
            }
            Self::Foreign(_, trouble) | Self::Refused(_, trouble) => {
                trouble.kind().is_some_and(wanted)
            }
            Self::LeaseState(_, refusal) | Self::Watch(refusal) | Self::WatchCancelled(refusal) => {
                wanted(refusal.kind)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::LogOnce;

    fn refused(kind: CallErrorKind) -> EndpointError {
        EndpointError::Call(CallError { kind, words: "no".to_owned() })
    }

    #[test]
    fn endpoints_are_compared_one_by_one() {
        let endpoints = |all: &[EndpointError]| {
            EtcdError::Endpoints(
                all.iter().map(|one| ("http://a:1".to_owned(), one.clone())).collect(),
            )
        };
        let away =
            |words: &str| EndpointError::Unreachable(ConnectError::Refused, words.to_owned());
        let silent = EndpointError::NoConnection(Duration::from_secs(3));
        let down = |first: EndpointError| endpoints(&[first, refused(CallErrorKind::Credentials)]);
        let mut log = LogOnce::default();
        let mut news = |trouble: EtcdError| log.news(Some(&trouble.into()));
        assert!(news(down(away("refused"))) && !news(down(silent.clone())));
        assert!(
            news(endpoints(&[away("refused"), silent.clone()])) && !news(EtcdError::WatchSilent)
        );
        // What ails one endpoint is told, although another is away.
        let foreign = EndpointError::ForeignCluster { cluster: 1, known: 2 };
        assert!(news(endpoints(&[away("refused"), foreign])));
        assert!(
            down(silent.clone()).has(|kind| kind == CallErrorKind::Credentials)
                && !down(silent).has(|kind| kind == CallErrorKind::NoUser)
        );
    }

    #[test]
    fn cause_of_several_endpoints_is_the_one_with_a_remedy() {
        let silent = EndpointError::NoConnection(Duration::from_secs(3));
        let all = [("http://a:1", silent), ("http://b:1", refused(CallErrorKind::Permission))];
        let trouble = EtcdError::Endpoints(
            all.into_iter().map(|(endpoint, trouble)| (endpoint.to_owned(), trouble)).collect(),
        );
        let want = Detail::Store {
            cause: StoreCause::Role,
            status: None,
            server: Some("http://b:1".to_owned()),
        };
        assert_eq!(trouble.detail(), want);
        assert!(Problem::from(trouble).has("etcd-no-connection"));
    }
}
