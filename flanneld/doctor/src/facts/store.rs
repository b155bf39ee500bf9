//! The store of the leases.

use crate::fact::Fact;
use std::net::IpAddr;
use std::path::PathBuf;

/// The store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// What it is: `etcd at https://192.0.2.250:2379`, `the directory /var/lib/flannel`.
    pub place: String,
    /// Its addresses; empty for a store on this host.
    pub addresses: Vec<IpAddr>,
    /// How commands reach it.
    pub access: Access,
    /// Why it does not answer; absent while it does.
    pub trouble: Fact<Trouble>,
    /// What is wrong with the network's configuration in it; absent if nothing.
    pub config: Fact<String>,
}

/// How commands reach the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Not known.
    #[default]
    Unknown,
    /// By etcdctl.
    Etcd(Etcd),
    /// As files in this directory.
    Directory(PathBuf),
    /// By kubectl.
    Kubernetes,
}

/// The options by which flanneld reaches etcd, without the password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Etcd {
    /// The endpoints.
    pub endpoints: Vec<String>,
    /// The root of the keys.
    pub prefix: String,
    /// The certificate authority.
    pub ca: Option<PathBuf>,
    /// The client's certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The user.
    pub user: Option<String>,
}

/// Why the store does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kind.
    pub kind: TroubleKind,
    /// The client's words.
    pub text: String,
}

/// The kinds of trouble with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// Nobody listens there.
    Refused,
    /// There is no route to it.
    NoRoute,
    /// It does not answer in time.
    Silent,
    /// Its name is not known.
    Name,
    /// The certificates do not fit.
    Tls,
    /// User, password or certificate are refused.
    User,
    /// The user may not do it.
    Role,
    /// Its disk quota is used up.
    NoSpace,
    /// Its members have no quorum.
    NoQuorum,
    /// Anything else.
    Other,
}

impl TroubleKind {
    /// The kind, from the words of etcd, its client and the system. They are few and do not change between releases.
    pub fn of(text: &str) -> Self {
        let text = text.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has(&["nospace", "database space exceeded"]) {
            Self::NoSpace
        } else if has(&["permission denied", "forbidden"]) {
            Self::Role
        } else if has(&[
            "user name is empty",
            "invalid user",
            "authentication failed",
            "invalid auth token",
            "unauthorized",
            "wants a client certificate",
        ]) {
            Self::User
        } else if has(&["certificate", "tls", "handshake"]) {
            Self::Tls
        } else if has(&["no leader", "leader changed", "quorum"]) {
            Self::NoQuorum
        } else if has(&["failed to lookup", "name or service not known", "dns", "name resolution", "cannot resolve"]) {
            Self::Name
        } else if has(&["refused"]) {
            Self::Refused
        } else if has(&["unreachable", "no route"]) {
            Self::NoRoute
        } else if has(&["timed out", "timeout", "deadline", "does not answer", "no answer"]) {
            Self::Silent
        } else {
            Self::Other
        }
    }
}
