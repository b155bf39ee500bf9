//! Errors of one etcd endpoint, and errors of all endpoints together.

use super::errors::{FailureKind, Refusal};
use super::tls_trouble::TlsTrouble;
use crate::config::ConfigError;
use crate::foreign::ConnectFailure;
use crate::reason::Lasting;
use std::fmt;
use std::time::Duration;
use types::problem::{ConfigPlace, StoreCause};
use types::{Coded, Detail, Problem};

/// Request or handshake to which an endpoint did not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The first request.
    Anything,
    /// The TLS handshake.
    Handshake,
    /// The log-in of the given user.
    LogIn(String),
}

/// Permission, log-in or database space that the refused request lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Nothing known.
    Nothing,
    /// A permission on the keys below a prefix.
    Right {
        /// The user; `None` for the user of the client certificate.
        user: Option<String>,
        /// Prefix of all keys, e.g. `/coreos.com/network`.
        prefix: String,
    },
    /// A user name and a password.
    LogIn,
    /// Free space in etcd's database.
    Space,
}

/// Reason why one endpoint is unusable or did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointTrouble {
    /// Change of this host's addresses during the request.
    Readdressed,
    /// Endpoint that did not reply in time.
    NoAnswer(Asked, Duration),
    /// Connection whose setup exceeded the time limit.
    NoConnection(Duration),
    /// Failed connection, with the error's text.
    Unreachable(ConnectFailure, String),
    /// Endpoint that is not an address, with the parser's error.
    NoAddress(String),
    /// TLS failed.
    Tls(TlsTrouble),
    /// A call failed.
    Call(Refusal),
    /// Failed log-in, with the name of the etcd user.
    LogIn(String, Refusal),
    /// Refusal of a request on a key.
    Key {
        /// Full key of the refused request.
        key: String,
        /// The refusal.
        refusal: Refusal,
        /// Missing permission, log-in or space that explains the refusal.
        lack: Lack,
    },
    /// Endpoint that belongs to another cluster than the cluster in use.
    ForeignCluster {
        /// Cluster ID that the endpoint reports.
        cluster: u64,
        /// Cluster ID that this daemon has used so far.
        known: u64,
    },
}

impl From<TlsTrouble> for EndpointTrouble {
    fn from(trouble: TlsTrouble) -> Self {
        Self::Tls(trouble)
    }
}

impl From<Refusal> for EndpointTrouble {
    fn from(refusal: Refusal) -> Self {
        Self::Call(refusal)
    }
}

impl EndpointTrouble {
    /// Returns the cause of etcd's refusal; `None` if the error is not a refusal.
    pub fn kind(&self) -> Option<FailureKind> {
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
            Self::Tls(trouble) => trouble.cause(),
            Self::Call(refusal) | Self::LogIn(_, refusal) | Self::Key { refusal, .. } => {
                refusal.kind.cause()
            }
            Self::Readdressed | Self::NoAddress(_) | Self::ForeignCluster { .. } => {
                StoreCause::Other
            }
        }
    }
}

impl Coded for EndpointTrouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Readdressed => "etcd-readdressed",
            Self::NoAnswer(..) => "etcd-no-answer",
            Self::NoConnection(_) => "etcd-no-connection",
            Self::Unreachable(..) => "etcd-unreachable",
            Self::NoAddress(_) => "etcd-no-address",
            Self::Tls(trouble) => trouble.code(),
            Self::Call(refusal) | Self::LogIn(_, refusal) | Self::Key { refusal, .. } => {
                refusal.kind.code()
            }
            Self::ForeignCluster { .. } => "etcd-foreign-cluster",
        }
    }

    fn detail(&self) -> Detail {
        Detail::Store { cause: self.cause(), status: None, server: None }
    }
}

impl fmt::Display for EndpointTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Readdressed => f.write_str("this host's addresses changed during the request"),
            Self::NoAnswer(Asked::Anything, within) => write!(f, "no response within {within:?}"),
            Self::NoAnswer(Asked::Handshake, within) => {
                write!(f, "no response to the TLS handshake within {within:?}")
            }
            Self::NoAnswer(Asked::LogIn(user), within) => {
                write!(f, "no response to the log-in as user {user} within {within:?}")
            }
            Self::NoConnection(within) => write!(f, "no connection within {within:?}"),
            Self::Unreachable(_, words) => f.write_str(words),
            Self::NoAddress(fault) => write!(f, "not a usable address: {fault}"),
            Self::Tls(trouble) => trouble.fmt(f),
            Self::Call(refusal) => f.write_str(&refusal.words),
            Self::LogIn(user, refusal) => {
                write!(f, "log-in as user {user} failed: {}", refusal.words)
            }
            Self::Key { key, refusal, lack } => {
                write!(f, "refused {key}: {}", refusal.words)?;
                match lack {
                    Lack::Nothing => Ok(()),
                    Lack::Right { user, prefix } => {
                        let user = user.as_deref().unwrap_or("the client certificate's user");
                        write!(
                            f,
                            " ({user} needs read on {prefix}/config and readwrite on {prefix}/subnets/)"
                        )
                    }
                    Lack::LogIn => f.write_str(
                        " (this etcd requires a user; set --etcd-username and --etcd-password)",
                    ),
                    Lack::Space => {
                        f.write_str(" (etcd's NOSPACE alarm; compact and defragment etcd, and disarm the alarm)")
                    }
                }
            }
            Self::ForeignCluster { cluster, known } => write!(
                f,
                "the endpoint belongs to another etcd cluster ({cluster:x}) than the cluster in use ({known:x}), so flanneld does not use it. Correct --etcd-endpoints. If etcd was rebuilt and an endpoint never responds, restart flanneld"
            ),
        }
    }
}

/// Log topic that all errors of an unreachable etcd server share, because refused connections and timeouts alternate.
const UNREACHABLE: &str = "etcd-unreachable";

impl Lasting for EndpointTrouble {
    fn topic(&self) -> String {
        match self {
            Self::Readdressed
            | Self::NoAnswer(..)
            | Self::NoConnection(_)
            | Self::Unreachable(..) => UNREACHABLE.to_owned(),
            Self::Tls(trouble) => trouble.topic(),
            Self::NoAddress(_) => self.to_string(),
            Self::Call(refusal) | Self::LogIn(_, refusal) | Self::Key { refusal, .. } => {
                match refusal.kind {
                    FailureKind::Client => self.to_string(),
                    FailureKind::Refused(code) => format!("{} {code}", self.code()),
                    kind if kind.is_unavailable() => FailureKind::Unavailable.code().to_owned(),
                    _ => self.code().to_owned(),
                }
            }
            Self::ForeignCluster { .. } => self.code().to_owned(),
        }
    }
}

/// Reason why etcd did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdTrouble {
    /// All endpoints are unusable. The variant contains each endpoint with its error, in the configured order.
    Endpoints(Vec<(String, EndpointTrouble)>),
    /// Endpoint of another cluster than the cluster in use, with the error.
    Foreign(String, EndpointTrouble),
    /// Endpoint that refused the request, with the error.
    Refused(String, EndpointTrouble),
    /// Loss of the local address of the connection to an endpoint.
    Cut(String),
    /// Endpoint that did not reply in time.
    NoAnswer(String, Duration),
    /// Endpoint that did not report the state of a lease.
    LeaseState(String, Refusal),
    /// A watch ended.
    WatchClosed,
    /// Watch that etcd did not open in time.
    WatchNotOpened(Duration),
    /// Watch that delivers no message, not even the requested progress notification.
    WatchSilent,
    /// Request without a reply during the setup of a watch.
    WatchUnanswered,
    /// A watch failed.
    Watch(Refusal),
    /// etcd cancelled a watch.
    WatchCancelled(Refusal),
    /// Missing network configuration, with the key prefix.
    NoConfig(String),
    /// Unusable network configuration, with the key prefix.
    Config(String, ConfigError),
}

/// Example of a network configuration, for the remedies in error messages.
const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

impl EtcdTrouble {
    /// Returns whether the error contains a refusal whose cause satisfies `wanted`.
    pub fn has(&self, wanted: impl Fn(FailureKind) -> bool) -> bool {
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

    fn store(cause: StoreCause, server: Option<&String>) -> Detail {
        Detail::Store { cause, status: None, server: server.cloned() }
    }
}

impl Coded for EtcdTrouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Endpoints(_) => "etcd-unreachable",
            Self::Foreign(_, trouble) | Self::Refused(_, trouble) => trouble.code(),
            Self::Cut(_) => "etcd-connection-cut",
            Self::NoAnswer(..) | Self::WatchUnanswered => "etcd-no-answer",
            Self::LeaseState(_, refusal) | Self::Watch(refusal) | Self::WatchCancelled(refusal) => {
                refusal.kind.code()
            }
            Self::WatchClosed => "etcd-watch-closed",
            Self::WatchNotOpened(_) => "etcd-watch-not-opened",
            Self::WatchSilent => "etcd-watch-silent",
            Self::NoConfig(_) => "config-missing",
            Self::Config(_, error) => error.code(),
        }
    }

    fn detail(&self) -> Detail {
        let place = |prefix: &String| ConfigPlace::Key(format!("{prefix}/config"));
        match self {
            Self::Endpoints(all) => match all.iter().min_by_key(|(_, trouble)| trouble.cause()) {
                Some((endpoint, trouble)) => Self::store(trouble.cause(), Some(endpoint)),
                None => Self::store(StoreCause::Other, None),
            },
            Self::Foreign(endpoint, trouble) | Self::Refused(endpoint, trouble) => {
                Self::store(trouble.cause(), Some(endpoint))
            }
            Self::Cut(endpoint) => Self::store(StoreCause::Other, Some(endpoint)),
            Self::NoAnswer(endpoint, _) => Self::store(StoreCause::Silent, Some(endpoint)),
            Self::LeaseState(endpoint, refusal) => {
                Self::store(refusal.kind.cause(), Some(endpoint))
            }
            Self::Watch(refusal) | Self::WatchCancelled(refusal) => {
                Self::store(refusal.kind.cause(), None)
            }
            Self::WatchUnanswered | Self::WatchNotOpened(_) | Self::WatchSilent => {
                Self::store(StoreCause::Silent, None)
            }
            Self::WatchClosed => Self::store(StoreCause::Other, None),
            Self::NoConfig(prefix) => {
                Detail::ConfigMissing { place: place(prefix), example: EXAMPLE.to_owned() }
            }
            Self::Config(prefix, _) => Detail::ConfigInvalid { place: Some(place(prefix)) },
        }
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            Self::Endpoints(all) => all.iter().map(|(_, trouble)| Problem::of(trouble)).collect(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for EtcdTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints(all) => {
                let texts: Vec<String> =
                    all.iter().map(|(endpoint, why)| format!("{endpoint}: {why}")).collect();
                write!(f, "cannot reach etcd at {}", texts.join("; "))
            }
            Self::Foreign(endpoint, why) => write!(f, "etcd at {endpoint}: {why}"),
            Self::Refused(endpoint, why) => write!(f, "etcd at {endpoint} {why}"),
            Self::Cut(endpoint) => {
                write!(
                    f,
                    "the connection to etcd at {endpoint} was closed: this host no longer has the connection's local address"
                )
            }
            Self::NoAnswer(endpoint, within) => {
                write!(f, "etcd at {endpoint} did not respond within {within:?}")
            }
            Self::LeaseState(endpoint, refusal) => write!(
                f,
                "etcd at {endpoint} did not report the state of a lease: {}",
                refusal.words
            ),
            Self::WatchClosed => f.write_str("etcd closed the watch"),
            Self::WatchNotOpened(within) => {
                write!(f, "etcd did not open the watch within {within:?}")
            }
            Self::WatchSilent => f.write_str("the watch delivers no messages"),
            Self::WatchUnanswered => f.write_str("no response"),
            Self::Watch(refusal) => f.write_str(&refusal.words),
            Self::WatchCancelled(refusal) => {
                write!(f, "etcd cancelled the watch: {}", refusal.words)
            }
            Self::NoConfig(prefix) => write!(
                f,
                "the network configuration {prefix}/config is not in etcd (v3); put it there with `etcdctl put {prefix}/config '{EXAMPLE}'` \
                 (with ETCDCTL_API=3 on etcdctl 3.3 and older)"
            ),
            Self::Config(prefix, error) => write!(f, "{prefix}/config: {error}"),
        }
    }
}

impl Lasting for EtcdTrouble {
    fn topic(&self) -> String {
        match self {
            Self::Endpoints(all) => {
                let mut topics: Vec<String> =
                    all.iter().map(|(_, trouble)| trouble.topic()).collect();
                // If all endpoints have the same trouble, it is the trouble of etcd as a whole.
                if topics.windows(2).all(|pair| pair.first() == pair.last()) {
                    topics.truncate(1);
                }
                topics.join("; ")
            }
            Self::Foreign(_, trouble) | Self::Refused(_, trouble) => trouble.topic(),
            Self::LeaseState(_, refusal) | Self::Watch(refusal) | Self::WatchCancelled(refusal) => {
                EndpointTrouble::Call(refusal.clone()).topic()
            }
            Self::Cut(_)
            | Self::NoAnswer(..)
            | Self::WatchClosed
            | Self::WatchNotOpened(_)
            | Self::WatchSilent
            | Self::WatchUnanswered => UNREACHABLE.to_owned(),
            Self::NoConfig(_) | Self::Config(..) => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::{LogOnce, Reason};

    fn refused(kind: FailureKind) -> EndpointTrouble {
        EndpointTrouble::Call(Refusal { kind, words: "no".to_owned() })
    }

    #[test]
    fn endpoints_are_compared_one_by_one() {
        let endpoints = |all: &[EndpointTrouble]| {
            EtcdTrouble::Endpoints(
                all.iter().map(|one| ("http://a:1".to_owned(), one.clone())).collect(),
            )
        };
        let away =
            |words: &str| EndpointTrouble::Unreachable(ConnectFailure::Refused, words.to_owned());
        let silent = EndpointTrouble::NoConnection(Duration::from_secs(3));
        let down = |first: EndpointTrouble| endpoints(&[first, refused(FailureKind::Credentials)]);
        let mut log = LogOnce::default();
        let mut news = |trouble: EtcdTrouble| log.news(Some(&Reason::from(trouble)));
        assert!(news(down(away("refused"))) && !news(down(silent.clone())));
        assert!(
            news(endpoints(&[away("refused"), silent.clone()])) && !news(EtcdTrouble::WatchSilent)
        );
        assert!(
            down(silent.clone()).has(|kind| kind == FailureKind::Credentials)
                && !down(silent).has(|kind| kind == FailureKind::NoUser)
        );
    }

    #[test]
    fn cause_of_several_endpoints_is_the_one_with_a_remedy() {
        let silent = EndpointTrouble::NoConnection(Duration::from_secs(3));
        let all = [("http://a:1", silent), ("http://b:1", refused(FailureKind::Permission))];
        let trouble = EtcdTrouble::Endpoints(
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
