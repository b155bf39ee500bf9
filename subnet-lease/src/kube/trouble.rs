//! Errors of the Kubernetes API, of the connection to it, and of the objects that flannel needs.

pub(super) use super::fault::Nonsense;
use super::pod_cidr::PodCidrTrouble;
use super::status::{self, ApiRefusal};
use super::token::TokenError;
use crate::config::ConfigError;
use crate::foreign::{Certificate, ConnectFailure};
use crate::json::excerpt;
use crate::manager::Stopped;
use crate::reason::{Lasting, with_causes};
use http::StatusCode;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use types::Subnets;
use types::problem::{ConfigPlace, StoreCause};
use types::{Coded, Detail};

/// Reason why a server did not respond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The connection failed. Contains the error's text.
    ConnectFailure(ConnectFailure, String),
    /// The server did not begin its response in time.
    NoAnswer(Duration),
    /// The server did not finish its response in time.
    Unfinished(Duration),
    /// The server ended a watch early.
    EndedEarly,
}

impl Silence {
    /// Returns the cause of a failed connection.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::ConnectFailure(ConnectFailure::of(error), with_causes(error))
    }

    fn cause(&self) -> StoreCause {
        match self {
            Self::ConnectFailure(failure, _) => failure.cause(),
            Self::NoAnswer(_) | Self::Unfinished(_) => StoreCause::Silent,
            Self::EndedEarly => StoreCause::Other,
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectFailure(failure, words) => {
                let remedy = match failure {
                    ConnectFailure::Certificate(Certificate::Authority) => {
                        "its certificate is signed by an authority that this node does not know; check the CA of the kubeconfig or service account"
                    }
                    ConnectFailure::Certificate(Certificate::Name) => {
                        "its certificate is for another name; use a name or an address that it contains"
                    }
                    ConnectFailure::Certificate(Certificate::Expired)
                    | ConnectFailure::OwnExpired => {
                        "its certificate has expired, or this host's clock is wrong"
                    }
                    ConnectFailure::Certificate(Certificate::NotYetValid) => {
                        "its certificate is not valid yet: is this host's clock right?"
                    }
                    ConnectFailure::Plain => {
                        "it does not speak TLS; write http:// for a plain port"
                    }
                    _ => return f.write_str(&status::words(words)),
                };
                write!(f, "{}: {remedy}", excerpt(words))
            }
            Self::NoAnswer(within) => write!(f, "no answer within {within:?}"),
            Self::Unfinished(within) => write!(f, "the answer did not end within {within:?}"),
            Self::EndedEarly => {
                f.write_str("it ended the watch early, as a server does that stops")
            }
        }
    }
}

/// Mistake in a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The cluster has a proxy.
    Proxy,
    /// The kubeconfig is unreadable. Contains the parser's error.
    Unread(String),
    /// The client cannot send the token.
    Token(TokenError),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy => f.write_str(
                "the cluster has a proxy-url, and flannel connects to the API server directly; remove proxy-url, and name an address that this \
                 node reaches as the cluster's server or with --kube-api-url",
            ),
            Self::Unread(fault) => f.write_str(fault),
            Self::Token(error) => error.fmt(f),
        }
    }
}

/// Reason why the network configuration is unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetConfFault {
    /// The file is unreadable. Contains the system's error.
    System(String),
    /// The file has more bytes than this.
    TooLong(usize),
}

impl fmt::Display for NetConfFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(words) => f.write_str(words),
            Self::TooLong(limit) => write!(f, "it has more than {limit} bytes"),
        }
    }
}

/// Problem with the Kubernetes API, or with an object that flannel needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeTrouble {
    /// A server did not respond.
    Unreachable {
        /// URL of the server.
        server: String,
        /// Description of the request, e.g. `list all Nodes`.
        what: String,
        /// The reason.
        why: Silence,
    },
    /// A server refused a request.
    Refused {
        /// URL of the server.
        server: String,
        /// Description of the request, e.g. `list all Nodes`.
        what: String,
        /// HTTP status of the response.
        status: StatusCode,
        /// Parsed `Status` object of the response.
        refusal: Box<ApiRefusal>,
    },
    /// A response is too large.
    TooLarge {
        /// URL of the server.
        server: String,
        /// Description of the request, e.g. `list all Nodes`.
        what: String,
        /// Maximum size in bytes.
        limit: usize,
    },
    /// A response does not come from the Kubernetes API.
    Nonsense {
        /// URL of the server.
        server: String,
        /// Description of the request, e.g. `list all Nodes`.
        what: String,
        /// The reason.
        why: Nonsense,
    },
    /// The client cannot send the token to a server.
    Token(String, TokenError),
    /// The client cannot set up a connection to a server. Contains the library's error.
    Connection(String, String),
    /// A mistake in the kubeconfig.
    Kubeconfig(PathBuf, Mistake),
    /// A mistake in the token of the service account.
    AccountToken(TokenError),
    /// The client found neither a kubeconfig nor a service account.
    NoPod,
    /// The service account in this directory is unreadable. Contains the library's error.
    Account(&'static str, String),
    /// The CA certificate of the service account is unreadable. Contains the library's error.
    Authority(PathBuf, String),
    /// No Node to serve was configured.
    Nobody,
    /// The pod of this daemon has no Node.
    PodWithoutNode {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
    },
    /// The daemon cannot read its own pod from the API server.
    Pod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// The reason.
        why: Box<KubeTrouble>,
    },
    /// No Node has this name. Contains the name of a similar Node, if one exists.
    NoNode(String, Option<String>),
    /// This node's Node was deleted.
    NodeDeleted(String, Subnets),
    /// The API server has not responded yet.
    NotAnswered,
    /// The API server has not listed all Nodes yet.
    NotListed,
    /// A task has ended.
    Stopped(Stopped),
    /// The podCIDR is unusable.
    PodCidr(PodCidrTrouble),
    /// An operator mistyped the value of an annotation.
    Typo {
        /// Name of the Node.
        node: String,
        /// Name of the annotation.
        key: String,
        /// Beginning of the value.
        value: String,
        /// The expected address family.
        family: &'static str,
    },
    /// The network configuration is unreadable.
    NetConf(PathBuf, NetConfFault),
    /// The network configuration is unusable.
    Config(PathBuf, ConfigError),
    /// The API server does not continue from its last state, e.g. after a restore from a backup.
    Discontinuity {
        /// URL of the server.
        server: String,
        /// Name of the Node that shows the discontinuity.
        node: String,
        /// Whether the Node is gone. If not, its version is older than before.
        gone: bool,
    },
    /// A file that a tool needs is unreadable. Contains the system's error.
    File(PathBuf, String),
    /// The network configuration at this place is unusable.
    ConfigAt(String, ConfigError),
    /// A ConfigMap with a network configuration is missing.
    NoConfigMap,
    /// Several ConfigMaps have different configurations.
    ConfigMapsDiffer(Vec<String>),
    /// A response is malformed. Contains the parser's error.
    Answer(String),
    /// A listed lease does not name its Node.
    NoNodeNamed(String),
    /// Kubernetes does not support reserved subnets.
    NothingReserved,
}

impl From<Stopped> for KubeTrouble {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl From<PodCidrTrouble> for KubeTrouble {
    fn from(trouble: PodCidrTrouble) -> Self {
        Self::PodCidr(trouble)
    }
}

impl KubeTrouble {
    /// Whether the daemon exits instead of retrying.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Kubeconfig(..) | Self::AccountToken(_) | Self::NoPod | Self::Nobody
        )
    }
}

impl Coded for KubeTrouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "kubernetes-unreachable",
            Self::Refused { status, .. } => match *status {
                StatusCode::UNAUTHORIZED => "kubernetes-credentials",
                StatusCode::FORBIDDEN => "kubernetes-forbidden",
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
                | StatusCode::BAD_GATEWAY
                | StatusCode::INTERNAL_SERVER_ERROR => "kubernetes-unavailable",
                _ => "kubernetes-refused",
            },
            Self::TooLarge { .. } => "kubernetes-too-large",
            Self::Nonsense { .. } => "kubernetes-nonsense",
            Self::Token(..) | Self::AccountToken(_) => "kubernetes-token",
            Self::Connection(..) => "kubernetes-connection",
            Self::Kubeconfig(..) => "kubeconfig",
            Self::NoPod => "kubernetes-no-pod",
            Self::Account(..) | Self::Authority(..) => "kubernetes-service-account",
            Self::Nobody => "kubernetes-nobody",
            Self::PodWithoutNode { .. } => "pod-without-node",
            Self::Pod { why, .. } => why.code(),
            Self::NoNode(..) => "no-node",
            Self::NodeDeleted(..) => "node-deleted",
            Self::NotAnswered => "kubernetes-not-answered",
            Self::NotListed => "kubernetes-not-listed",
            Self::Stopped(stopped) => stopped.code(),
            Self::PodCidr(trouble) => trouble.code(),
            Self::Typo { .. } => "annotation-mistyped",
            Self::NetConf(..) => "net-conf-unreadable",
            Self::Config(_, error) | Self::ConfigAt(_, error) => error.code(),
            Self::Discontinuity { .. } => "kubernetes-discontinuity",
            Self::File(..) => "file-unreadable",
            Self::NoConfigMap => "no-configmap",
            Self::ConfigMapsDiffer(_) => "configmaps-differ",
            Self::Answer(_) => "kubernetes-answer",
            Self::NoNodeNamed(_) => "lease-without-node",
            Self::NothingReserved => "kubernetes-nothing-reserved",
        }
    }

    fn detail(&self) -> Detail {
        let store = |cause, status: Option<StatusCode>, server: &str| Detail::Store {
            cause,
            status: status.map(|status| status.as_u16()),
            server: Some(server.to_owned()).filter(|server| !server.is_empty()),
        };
        match self {
            Self::Unreachable { server, why, .. } => store(why.cause(), None, server),
            Self::Refused {
                server,
                status,
                refusal,
                ..
            } => match &refusal.forbidden {
                Some(missing) => {
                    let status::Forbidden {
                        user,
                        verb,
                        resource,
                    } = missing.clone();
                    Detail::Forbidden {
                        user,
                        verb,
                        resource,
                    }
                }
                None => store(status::cause(*status), Some(*status), server),
            },
            Self::TooLarge { server, .. } | Self::Nonsense { server, .. } => {
                store(StoreCause::Other, None, server)
            }
            Self::Token(server, _) => store(StoreCause::User, None, server),
            Self::Connection(server, _) => store(StoreCause::Tls, None, server),
            Self::NotAnswered => store(StoreCause::Silent, None, ""),
            Self::Pod { why, .. } => why.detail(),
            Self::PodCidr(trouble) => trouble.detail(),
            Self::NetConf(path, _) | Self::Config(path, _) => Detail::ConfigInvalid {
                place: Some(ConfigPlace::Mounted(path.clone())),
            },
            Self::ConfigAt(..) => Detail::ConfigInvalid { place: None },
            _ => Detail::None,
        }
    }
}

/// Returns the remedy at the end of a refusal's text.
fn remedy_of_refusal(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            "; the token or the certificate is not accepted: has it expired, is this host's clock right, was the service account deleted?"
        }
        StatusCode::FORBIDDEN => {
            "; apply the ClusterRole and the ClusterRoleBinding of conf/kube-flannel.yml"
        }
        _ => "",
    }
}

impl fmt::Display for KubeTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        types::problem::text(f, self, |f| {
            match self {
            Self::Unreachable { server, what, why } => {
                write!(f, "the Kubernetes API at {server} did not answer a request to {what}: {why}")
            }
            Self::Refused { server, what, status, refusal } => {
                let (number, remedy) = (status.as_u16(), remedy_of_refusal(*status));
                write!(f, "the Kubernetes API at {server} refused a request to {what} ({number}): {}{remedy}", refusal.words)
            }
            Self::TooLarge { server, what, limit } => {
                write!(f, "the answer of the Kubernetes API at {server} to a request to {what} has more than {limit} bytes")
            }
            Self::Nonsense { server, what, why } => write!(
                f,
                "the answer of {server} to a request to {what} is not the Kubernetes API's: {why}; does --kube-api-url, or the kubeconfig, name an API \
                 server?"
            ),
            Self::Token(server, why) => write!(f, "cannot log in to the Kubernetes API at {server}: {why}"),
            Self::Connection(server, fault) => write!(f, "cannot connect to the Kubernetes API at {server}: {fault}"),
            Self::Kubeconfig(path, why) => write!(f, "fail to create kubernetes config: {}: {why}", path.display()),
            Self::AccountToken(why) => why.fmt(f),
            Self::NoPod => f.write_str(
                "fail to create kubernetes config: flanneld does not run in a pod (KUBERNETES_SERVICE_HOST is not set); name a kubeconfig with --kubeconfig-file, \
                 or the API server with --kube-api-url",
            ),
            Self::Account(folder, fault) => write!(f, "cannot read the pod's service account in {folder}: {fault}"),
            Self::Authority(path, fault) => write!(f, "cannot read {}: {fault}", path.display()),
            Self::Nobody => f.write_str("no Node to serve"),
            Self::PodWithoutNode { namespace, name } => write!(f, "node name not present in pod spec '{namespace}/{name}'"),
            Self::Pod { namespace, name, why } => {
                write!(f, "error retrieving pod spec for '{namespace}/{name}': {why}; or set NODE_NAME")
            }
            Self::NoNode(name, Some(other)) => {
                write!(f, "there is no Node {name}, but one named {other}: set NODE_NAME to it (in the pod, from spec.nodeName)")
            }
            Self::NoNode(name, None) => {
                write!(f, "there is no Node {name}: waiting for its kubelet to register it (the name comes from NODE_NAME or the pod's spec.nodeName)")
            }
            Self::NodeDeleted(name, subnets) => write!(
                f,
                "the Node {name} was deleted: this node keeps its subnet {subnets} until another Node gets it. Restart the kubelet, which registers \
                 the Node again, or take the machine out of the cluster"
            ),
            Self::NotAnswered => f.write_str("the Kubernetes API has not answered yet"),
            Self::NotListed => f.write_str("the Kubernetes API has not listed all Nodes yet"),
            Self::Stopped(stopped) => stopped.fmt(f),
            Self::PodCidr(trouble) => trouble.fmt(f),
            Self::Typo { node, key, value, family } => write!(
                f,
                "the annotation {key} of Node {node} is {value}, which is not an {family} address: correct it (kubectl annotate node {node} --overwrite \
                 {key}=ADDRESS) or remove it (kubectl annotate node {node} {key}-)"
            ),
            Self::NetConf(path, fault) => write!(
                f,
                "failed to read net conf: {}: {fault}; it comes from the ConfigMap kube-flannel-cfg, key net-conf.json, which the pod mounts \
                 (another path: --net-config-path)",
                path.display()
            ),
            Self::Config(path, error) => write!(f, "error parsing subnet config: {}: {error}", path.display()),
            Self::Discontinuity { server, node, gone } => {
                let why = if *gone { "is gone" } else { "is an older one than before" };
                write!(f, "the Kubernetes API at {server} does not continue where it stopped (the Node {node} {why}): listing all Nodes")
            }
            Self::File(path, fault) => write!(f, "cannot read {}: {fault}", path.display()),
            Self::ConfigAt(place, error) => write!(f, "{place}: {error}"),
            Self::NoConfigMap => {
                f.write_str("there is no ConfigMap kube-flannel-cfg with a net-conf.json; name a copy of the file with --net-config-path")
            }
            Self::ConfigMapsDiffer(names) => {
                write!(f, "{} differ; delete those that no daemon uses, or name a copy of the file with --net-config-path", names.join(" and "))
            }
            Self::Answer(fault) => f.write_str(fault),
            Self::NoNodeNamed(key) => write!(f, "{key} names no Node"),
            Self::NothingReserved => f.write_str("on Kubernetes a node's subnet is its Node's podCIDR: nothing can be reserved"),
        }
        })
    }
}

impl Lasting for KubeTrouble {
    fn topic(&self) -> String {
        match self {
            Self::Refused { status, .. } if self.code() == "kubernetes-refused" => {
                format!("{} {}", self.code(), status.as_u16())
            }
            Self::Pod { why, .. } => why.topic(),
            Self::NotAnswered => "kubernetes-unreachable".to_owned(),
            Self::Unreachable { .. }
            | Self::Refused { .. }
            | Self::TooLarge { .. }
            | Self::Nonsense { .. }
            | Self::Account(..)
            | Self::NoNode(..)
            | Self::NodeDeleted(..)
            | Self::NetConf(..)
            | Self::Discontinuity { .. } => self.code().to_owned(),
            _ => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_tls_have_remedies() {
        let silence =
            |failure, words: &str| Silence::ConnectFailure(failure, words.to_owned()).to_string();
        let unknown = silence(
            ConnectFailure::Certificate(Certificate::Authority),
            "invalid peer certificate: UnknownIssuer",
        );
        assert!(
            unknown.starts_with(
                "invalid peer certificate: UnknownIssuer: its certificate is signed by"
            ),
            "{unknown}"
        );
        assert_eq!(
            silence(ConnectFailure::Refused, "tcp connect error"),
            "tcp connect error"
        );
        assert_eq!(silence(ConnectFailure::Other, ""), "no reason was given");
    }
}
