//! Errors of the Kubernetes API, of the connection to the API server, and of the objects that flannel needs.

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
use types::problem::{ConfigPlace, StoreCause};
use types::{Coded, Detail, Subnets};

/// Reason why a server did not respond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The connection failed. The variant contains the error's text.
    ConnectFailure(ConnectFailure, String),
    /// Response that the server did not begin in time.
    NoAnswer(Duration),
    /// Response that the server did not finish in time.
    Unfinished(Duration),
    /// Early end of a watch by the server.
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
                        "the server's certificate is signed by an authority that this node does not know; check the CA of the kubeconfig or service account"
                    }
                    ConnectFailure::Certificate(Certificate::Name) => {
                        "the server's certificate is for another name; use a name or an address that the certificate contains"
                    }
                    ConnectFailure::Certificate(Certificate::Expired)
                    | ConnectFailure::OwnExpired => {
                        "the certificate of the server or of this node has expired, or this host's clock is wrong; renew the certificate or set the clock"
                    }
                    ConnectFailure::Certificate(Certificate::NotYetValid) => {
                        "the server's certificate is not valid yet; check this host's clock"
                    }
                    ConnectFailure::Plain => {
                        "the server does not speak TLS; write http:// for a plain port"
                    }
                    _ => return f.write_str(&status::words(words)),
                };
                write!(f, "{}: {remedy}", excerpt(words))
            }
            Self::NoAnswer(within) => write!(f, "no response within {within:?}"),
            Self::Unfinished(within) => write!(f, "the response did not end within {within:?}"),
            Self::EndedEarly => {
                f.write_str("the server ended the watch early, as a server does during a shutdown")
            }
        }
    }
}

/// Mistake in a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Cluster with a proxy, which flannel does not support.
    Proxy,
    /// The kubeconfig is unreadable. The variant contains the parser's error.
    Unread(String),
    /// Token that the client cannot send.
    Token(TokenError),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy => f.write_str(
                "the cluster has a proxy-url, which flannel does not support; remove proxy-url, and name an address that this \
                 node reaches as the cluster's server or with --kube-api-url",
            ),
            Self::Unread(fault) => f.write_str(fault),
            Self::Token(error) => error.fmt(f),
        }
    }
}

/// Problem with the Kubernetes API, or with an object that flannel needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeTrouble {
    /// Server that did not respond.
    Unreachable {
        /// URL of the server.
        server: String,
        /// Description of the request, e.g. `list all Nodes`.
        what: String,
        /// The reason.
        why: Silence,
    },
    /// Request that a server refused.
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
    /// Response that is too large.
    TooLarge {
        /// URL of the server.
        server: String,
        /// Description of the request, e.g. `list all Nodes`.
        what: String,
        /// Maximum size of a response in bytes.
        limit: usize,
    },
    /// Response that does not come from the Kubernetes API.
    Nonsense {
        /// URL of the server.
        server: String,
        /// Description of the request, e.g. `list all Nodes`.
        what: String,
        /// The reason.
        why: Nonsense,
    },
    /// Token that the client cannot send to the given server.
    Token(String, TokenError),
    /// Failed setup of a connection to a server. The variant contains the library's error.
    Connection(String, String),
    /// A mistake in the kubeconfig.
    Kubeconfig(PathBuf, Mistake),
    /// A mistake in the token of the service account.
    AccountToken(TokenError),
    /// Lack of both a kubeconfig and a service account.
    NoPod,
    /// Unreadable service account in the given directory. Contains the library's error.
    Account(&'static str, String),
    /// Unreadable CA certificate of the service account. The variant contains the library's error.
    Authority(PathBuf, String),
    /// Lack of a configured Node for this daemon.
    Nobody,
    /// Pod of the daemon whose spec names no Node.
    PodWithoutNode {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
    },
    /// Failed read of the daemon's own pod from the API server.
    Pod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// The reason.
        why: Box<KubeTrouble>,
    },
    /// Lack of a Node with the given name. The variant also contains the name of a similar Node, if such a Node exists.
    NoNode(String, Option<String>),
    /// Deletion of this node's Node.
    NodeDeleted(String, Subnets),
    /// API server that has not responded yet.
    NotAnswered,
    /// API server that has not listed all Nodes yet.
    NotListed,
    /// A task has ended.
    Stopped(Stopped),
    /// The podCIDR is unusable.
    PodCidr(PodCidrTrouble),
    /// Annotation whose value is not an address of the expected family.
    Typo {
        /// Name of the Node.
        node: String,
        /// Name of the annotation.
        key: String,
        /// Beginning of the annotation's value.
        value: String,
        /// The expected address family.
        family: &'static str,
    },
    /// Unreadable network configuration file.
    NetConf(PathBuf, String),
    /// Unusable network configuration in the given file.
    Config(PathBuf, ConfigError),
    /// API server that does not continue from its last known state, e.g. after a restore from a backup.
    Discontinuity {
        /// URL of the server.
        server: String,
        /// Name of the Node that is gone or older than before.
        node: String,
        /// Whether the Node is gone. If the Node is not gone, the Node's resource version is lower than before.
        gone: bool,
    },
    /// Unreadable file that a tool needs. Contains the system's error.
    File(PathBuf, String),
    /// Unusable network configuration at the given location.
    ConfigAt(String, ConfigError),
    /// Lack of a ConfigMap with a network configuration.
    NoConfigMap,
    /// Several ConfigMaps with different configurations.
    ConfigMapsDiffer(Vec<String>),
    /// A response is malformed. The variant contains the parser's error.
    Answer(String),
    /// Listed lease that does not name its Node.
    NoNodeNamed(String),
    /// Reservation of a subnet, which Kubernetes does not support.
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
    /// Returns whether the daemon exits instead of retrying.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Kubeconfig(..) | Self::AccountToken(_) | Self::NoPod | Self::Nobody)
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
            Self::Refused { server, status, refusal, .. } => match &refusal.forbidden {
                Some(missing) => {
                    let status::Forbidden { user, verb, resource } = missing.clone();
                    Detail::Forbidden { user, verb, resource }
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
            Self::NetConf(path, _) | Self::Config(path, _) => {
                Detail::ConfigInvalid { place: Some(ConfigPlace::Mounted(path.clone())) }
            }
            Self::ConfigAt(..) => Detail::ConfigInvalid { place: None },
            _ => Detail::None,
        }
    }
}

/// Returns the remedy that the error message appends to the server's text about a refusal.
fn remedy_of_refusal(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            "; the API server does not accept the token or the certificate. Check the expiry of the token or certificate, this host's clock, and whether the service account still exists"
        }
        StatusCode::FORBIDDEN => {
            "; apply the ClusterRole and the ClusterRoleBinding of conf/kube-flannel.yml"
        }
        _ => "",
    }
}

impl fmt::Display for KubeTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { server, what, why } => {
                write!(f, "the Kubernetes API at {server} did not respond to a request to {what}: {why}")
            }
            Self::Refused { server, what, status, refusal } => {
                let (number, remedy) = (status.as_u16(), remedy_of_refusal(*status));
                write!(f, "the Kubernetes API at {server} refused a request to {what} ({number}): {}{remedy}", refusal.words)
            }
            Self::TooLarge { server, what, limit } => {
                write!(f, "the response of the Kubernetes API at {server} to a request to {what} has more than {limit} bytes")
            }
            Self::Nonsense { server, what, why } => write!(
                f,
                "the response of {server} to a request to {what} is not from the Kubernetes API: {why}; check that --kube-api-url or the \
                 kubeconfig names an API server"
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
            Self::Nobody => f.write_str("no Node is configured for this daemon"),
            Self::PodWithoutNode { namespace, name } => write!(f, "node name not present in pod spec '{namespace}/{name}'"),
            Self::Pod { namespace, name, why } => {
                write!(f, "error retrieving pod spec for '{namespace}/{name}': {why}; or set NODE_NAME")
            }
            Self::NoNode(name, Some(other)) => {
                write!(f, "the Node {name} does not exist, but the Node {other} does; set NODE_NAME to {other} (in the pod, from spec.nodeName)")
            }
            Self::NoNode(name, None) => {
                write!(f, "the Node {name} does not exist: waiting for its kubelet to register it (the name comes from NODE_NAME or the pod's spec.nodeName)")
            }
            Self::NodeDeleted(name, subnets) => write!(
                f,
                "the Node {name} was deleted: this node keeps its subnet {subnets} until Kubernetes assigns the subnet to another Node. Restart the kubelet, which registers \
                 the Node again, or remove the machine from the cluster"
            ),
            Self::NotAnswered => f.write_str("the Kubernetes API has not responded yet"),
            Self::NotListed => f.write_str("the Kubernetes API has not listed all Nodes yet"),
            Self::Stopped(stopped) => stopped.fmt(f),
            Self::PodCidr(trouble) => trouble.fmt(f),
            Self::Typo { node, key, value, family } => write!(
                f,
                "the annotation {key} of Node {node} is {value}, which is not an {family} address; correct it (kubectl annotate node {node} --overwrite \
                 {key}=ADDRESS) or remove it (kubectl annotate node {node} {key}-)"
            ),
            Self::NetConf(path, fault) => write!(
                f,
                "failed to read net conf: {}: {fault}; the file comes from the ConfigMap kube-flannel-cfg, key net-conf.json, which the pod mounts \
                 (another path: --net-config-path)",
                path.display()
            ),
            Self::Config(path, error) => write!(f, "error parsing subnet config: {}: {error}", path.display()),
            Self::Discontinuity { server, node, gone } => {
                let why = if *gone { "is gone" } else { "is older than before" };
                write!(f, "the Kubernetes API at {server} does not continue from its last known state (the Node {node} {why}): listing all Nodes")
            }
            Self::File(path, fault) => write!(f, "cannot read {}: {fault}", path.display()),
            Self::ConfigAt(place, error) => write!(f, "{place}: {error}"),
            Self::NoConfigMap => {
                f.write_str("no ConfigMap kube-flannel-cfg contains a net-conf.json; name a copy of the file with --net-config-path")
            }
            Self::ConfigMapsDiffer(names) => {
                write!(f, "{} differ; delete the ConfigMaps that no daemon uses, or name a copy of the file with --net-config-path", names.join(" and "))
            }
            Self::Answer(fault) => f.write_str(fault),
            Self::NoNodeNamed(key) => write!(f, "{key} names no Node"),
            Self::NothingReserved => f.write_str("on Kubernetes, a node's subnet is its Node's podCIDR: flannelctl cannot reserve a subnet"),
        }
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
                "invalid peer certificate: UnknownIssuer: the server's certificate is signed by"
            ),
            "{unknown}"
        );
        assert_eq!(silence(ConnectFailure::Refused, "tcp connect error"), "tcp connect error");
        assert_eq!(silence(ConnectFailure::Other, ""), "no reason was given");
    }
}
