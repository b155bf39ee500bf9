//! Errors of the Kubernetes API, of the connection to the API server, and of the objects that flannel needs.

use super::status::{self, Forbidden, RefusedCall};
use super::token::TokenError;
use crate::config::ConfigError;
use crate::foreign::{Certificate, ConnectError};
use crate::json::{JsonError, excerpt};
use crate::manager::TaskError;
use crate::reason::{Lasting, with_causes};
use http::StatusCode;
use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use types::problem::{ConfigPlace, StoreCause};
use types::{Coded, Detail, Subnets};

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoResponseError {
    /// With the text of the error and of its causes.
    #[error("{}", connect_text(*.0, .1))]
    Connect(ConnectError, String),
    #[error("no response within {0:?}")]
    NoAnswer(Duration),
    #[error("the response did not end within {0:?}")]
    Unfinished(Duration),
    #[error("the server ended the watch early, as a server does during a shutdown")]
    EndedEarly,
}

impl NoResponseError {
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Connect(ConnectError::of(error), with_causes(error))
    }

    fn cause(&self) -> StoreCause {
        match self {
            Self::Connect(failure, _) => failure.cause(),
            Self::NoAnswer(_) | Self::Unfinished(_) => StoreCause::Silent,
            Self::EndedEarly => StoreCause::Other,
        }
    }
}

fn connect_text(error: ConnectError, words: &str) -> String {
    let remedy = match error {
        ConnectError::Certificate(Certificate::Authority) => {
            "the server's certificate is signed by an authority that this node does not know; check the CA of the kubeconfig or service account"
        }
        ConnectError::Certificate(Certificate::Name) => {
            "the server's certificate is for another name; use a name or an address that the certificate contains"
        }
        ConnectError::Certificate(Certificate::Expired) | ConnectError::OwnExpired => {
            "the certificate of the server or of this node has expired, or this host's clock is wrong; renew the certificate or set the clock"
        }
        ConnectError::Certificate(Certificate::NotYetValid) => {
            "the server's certificate is not valid yet; check this host's clock"
        }
        ConnectError::Plain => "the server does not speak TLS; write http:// for a plain port",
        _ => return status::words(words),
    };
    format!("{}: {remedy}", excerpt(words))
}

/// `what` describes the request, e.g. `list all Nodes`.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum KubeError {
    #[error("the Kubernetes API at {server} did not respond to a request to {what}: {why}")]
    #[code("kubernetes-unreachable")]
    #[detail(store_detail(why.cause(), None, server))]
    Unreachable { server: String, what: String, why: NoResponseError },
    #[error(
        "the Kubernetes API at {server} refused a request to {what} ({}): {}{}",
        status.as_u16(), refusal.words, remedy_of_refusal(*status)
    )]
    #[code(code_of_refusal(*status))]
    #[detail(match refusal.forbidden.clone() {
        Some(Forbidden { user, verb, resource }) => Detail::Forbidden { user, verb, resource },
        None => store_detail(status::cause(*status), Some(*status), server),
    })]
    Refused { server: String, what: String, status: StatusCode, refusal: Box<RefusedCall> },
    /// `limit` is in bytes.
    #[error(
        "the response of the Kubernetes API at {server} to a request to {what} has more than {limit} bytes"
    )]
    #[code("kubernetes-too-large")]
    #[detail(store_detail(StoreCause::Other, None, server))]
    TooLarge { server: String, what: String, limit: usize },
    #[error(
        "the response of {server} to a request to {what} is not from the Kubernetes API: {why}; check that --kube-api-url or the \
         kubeconfig names an API server"
    )]
    #[code("kubernetes-nonsense")]
    #[detail(store_detail(StoreCause::Other, None, server))]
    Nonsense { server: String, what: String, why: Cow<'static, str> },
    #[error("cannot log in to the Kubernetes API at {0}: {1}")]
    #[code("kubernetes-token")]
    #[detail(store_detail(StoreCause::User, None, _0))]
    Token(String, TokenError),
    #[error("cannot connect to the Kubernetes API at {0}: {1}")]
    #[code("kubernetes-connection")]
    #[detail(store_detail(StoreCause::Tls, None, _0))]
    Connection(String, String),
    #[error("fail to create kubernetes config: {0}: {1}")]
    #[code("kubeconfig")]
    Kubeconfig(PathBuf, String),
    #[error(transparent)]
    #[code("kubernetes-token")]
    AccountToken(TokenError),
    #[error(
        "fail to create kubernetes config: flanneld does not run in a pod (KUBERNETES_SERVICE_HOST is not set); name a kubeconfig with --kubeconfig-file, \
         or the API server with --kube-api-url"
    )]
    #[code("kubernetes-no-pod")]
    NoPod,
    #[error("cannot read the pod's service account in {0}: {1}")]
    #[code("kubernetes-service-account")]
    Account(&'static str, String),
    /// The CA certificate of the service account is unreadable.
    #[error("cannot read {0}: {1}")]
    #[code("kubernetes-service-account")]
    Authority(PathBuf, String),
    #[error("no Node is configured for this daemon")]
    #[code("kubernetes-nobody")]
    Nobody,
    #[error("node name not present in pod spec '{namespace}/{name}'")]
    PodWithoutNode { namespace: String, name: String },
    /// The daemon's own pod.
    #[error("error retrieving pod spec for '{namespace}/{name}': {why}; or set NODE_NAME")]
    #[code(why.code())]
    #[detail(why.detail())]
    Pod { namespace: String, name: String, why: Box<KubeError> },
    /// With the name of a similar Node that exists.
    #[error("the Node {0} does not exist{remedy}", remedy = remedy_of_missing_node(.1.as_deref()))]
    NoNode(String, Option<String>),
    #[error(
        "the Node {0} was deleted: this node keeps its subnet {1} until Kubernetes assigns the subnet to another Node. Restart the kubelet, which registers \
         the Node again, or remove the machine from the cluster"
    )]
    NodeDeleted(String, Subnets),
    #[error("the Kubernetes API has not responded yet")]
    #[code("kubernetes-not-answered")]
    #[detail(store_detail(StoreCause::Silent, None, ""))]
    NotAnswered,
    #[error("the Kubernetes API has not listed all Nodes yet")]
    #[code("kubernetes-not-listed")]
    NotListed,
    #[error(transparent)]
    #[code(of = _0)]
    Stopped(#[from] TaskError),
    #[error(transparent)]
    #[code(of = _0)]
    PodCidr(#[from] PodCidrError),
    /// `family` is `IPv4` or `IPv6`.
    #[error(
        "the annotation {key} of Node {node} is {value}, which is not an {family} address; correct it (kubectl annotate node {node} --overwrite \
         {key}=ADDRESS) or remove it (kubectl annotate node {node} {key}-)"
    )]
    #[code("annotation-mistyped")]
    Typo { node: String, key: String, value: String, family: &'static str },
    #[error(
        "failed to read net conf: {0}: {1}; the file comes from the ConfigMap kube-flannel-cfg, key net-conf.json, which the pod mounts \
         (another path: --net-config-path)"
    )]
    #[code("net-conf-unreadable")]
    #[detail(Detail::ConfigInvalid { place: Some(ConfigPlace::Mounted(_0.clone())) })]
    NetConf(PathBuf, String),
    #[error("error parsing subnet config: {0}: {1}")]
    #[code(_1.code())]
    #[detail(Detail::ConfigInvalid { place: Some(ConfigPlace::Mounted(_0.clone())) })]
    Config(PathBuf, ConfigError),
    /// The API server may have been restored from a backup. If the Node is not `gone`, its resource version is lower than before.
    #[error(
        "the Kubernetes API at {server} does not continue from its last known state (the Node {node} {}): listing all Nodes",
        if *gone { "is gone" } else { "is older than before" }
    )]
    #[code("kubernetes-discontinuity")]
    Discontinuity { server: String, node: String, gone: bool },
    #[error("cannot read {0}: {1}")]
    #[code("file-unreadable")]
    File(PathBuf, String),
    #[error("{0}: {1}")]
    #[code(_1.code())]
    #[detail(Detail::ConfigInvalid { place: None })]
    ConfigAt(String, ConfigError),
    #[error(
        "no ConfigMap kube-flannel-cfg contains a net-conf.json; name a copy of the file with --net-config-path"
    )]
    #[code("no-configmap")]
    NoConfigMap,
    #[error(
        "{} differ; delete the ConfigMaps that no daemon uses, or name a copy of the file with --net-config-path",
        .0.join(" and ")
    )]
    #[code("configmaps-differ")]
    ConfigMapsDiffer(Vec<String>),
    /// With the parser's error.
    #[error("{0}")]
    #[code("kubernetes-answer")]
    Answer(String),
    #[error("{0} names no Node")]
    #[code("lease-without-node")]
    NoNodeNamed(String),
    #[error(
        "on Kubernetes, a node's subnet is its Node's podCIDR: flannelctl cannot reserve a subnet"
    )]
    #[code("kubernetes-nothing-reserved")]
    NothingReserved,
}

impl KubeError {
    /// The daemon exits instead of retrying.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Kubeconfig(..) | Self::AccountToken(_) | Self::NoPod | Self::Nobody)
    }
}

fn store_detail(cause: StoreCause, status: Option<StatusCode>, server: &str) -> Detail {
    Detail::Store {
        cause,
        status: status.map(|status| status.as_u16()),
        server: Some(server.to_owned()).filter(|server| !server.is_empty()),
    }
}

fn code_of_refusal(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "kubernetes-credentials",
        StatusCode::FORBIDDEN => "kubernetes-forbidden",
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::INTERNAL_SERVER_ERROR => "kubernetes-unavailable",
        _ => "kubernetes-refused",
    }
}

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

fn remedy_of_missing_node(similar: Option<&str>) -> String {
    match similar {
        Some(other) => format!(
            ", but the Node {other} does; set NODE_NAME to {other} (in the pod, from spec.nodeName)"
        ),
        None => ": waiting for its kubelet to register it (the name comes from NODE_NAME or the pod's spec.nodeName)".to_owned(),
    }
}

impl Lasting for KubeError {
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

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum NodeError {
    #[error(transparent)]
    #[code("node-not-json")]
    Json(JsonError),
    #[error("the Node has no metadata")]
    #[code("node-without-metadata")]
    NoMetadata,
    #[error("the Node has no name")]
    #[code("node-without-name")]
    NoName,
}

/// With the beginning of the podCIDR or of the list of podCIDRs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PodCidrValueError {
    #[error("the podCIDR {0} is not a network")]
    NoNetwork(String),
    #[error("pod cidrs should be IPv4/IPv6 only or dualstack: {0}")]
    OneFamily(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum UnusableNodeError {
    #[error(transparent)]
    #[code("node-podcidr-unusable")]
    PodCidr(PodCidrValueError),
    #[error("the annotation {0} is not {1}")]
    #[code("node-annotation-unreadable")]
    Annotation(&'static str, &'static str),
    #[error("the podCIDR {0} is not inside the network")]
    #[code("node-podcidr-outside-network")]
    Outside(Subnets),
    /// With the name of the older Node.
    #[error("the podCIDR {0} overlaps the podCIDR of the older Node {1}")]
    #[code("node-podcidr-overlaps")]
    Overlaps(Subnets, String),
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[code("annotation-prefix")]
pub enum PrefixError {
    #[error("prefix can contain at most single slash")]
    Slashes,
    #[error(
        "{0:?}: prefix must be in a format: fqdn/[0-9a-z-_]*, such as flannel.alpha.coreos.com"
    )]
    Form(String),
}

/// Before the node has a lease or while it holds one.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum PodCidrError {
    #[error(
        "node \"{node}\" pod cidr not assigned: waiting for the controller manager; start kube-controller-manager with \
         --allocate-node-cidrs=true and --cluster-cidr={cluster_cidr}, or run kubeadm init with --pod-network-cidr={cluster_cidr}",
        cluster_cidr = list(networks)
    )]
    #[code("podcidr-missing")]
    #[detail(Detail::PodCidrMissing { cluster_cidr: Some(list(networks)) })]
    Missing { node: String, networks: Subnets },
    #[error("cannot use the podCIDRs of node \"{node}\": {why}")]
    #[code("podcidr-unusable")]
    Unusable { node: String, why: PodCidrValueError },
    #[error(
        "node \"{node}\" has podCIDR {subnets}, which is of another address family than the network {networks} in {net_conf}; change the ConfigMap \
         kube-flannel-cfg (kubectl -n kube-flannel edit configmap kube-flannel-cfg)"
    )]
    #[code("podcidr-other-family")]
    Family { node: String, subnets: Subnets, networks: Subnets, net_conf: PathBuf },
    #[error(
        "node \"{node}\" has podCIDR {subnets}, which is not inside the Network {networks} of {net_conf}. Set Network in the ConfigMap \
         kube-flannel-cfg to the cluster's pod network (kube-controller-manager's --cluster-cidr; 10.42.0.0/16 in k3s): kubectl -n \
         kube-flannel edit configmap kube-flannel-cfg. flanneld reads the change within two minutes, without a restart"
    )]
    #[code("podcidr-outside-network")]
    Outside { node: String, subnets: Subnets, networks: Subnets, net_conf: PathBuf },
    /// `other` is the older Node.
    #[error(
        "node \"{node}\" has podCIDR {subnets}, which overlaps the podCIDR of the older Node {other}. Delete one of the two Nodes (kubectl delete node {node}), and restart the deleted Node's kubelet, which registers the Node again"
    )]
    #[code("podcidr-overlaps")]
    Overlaps { node: String, subnets: Subnets, other: String },
}

fn list(networks: &Subnets) -> String {
    networks.nets().map(|net| net.to_string()).collect::<Vec<_>>().join(",")
}

impl Lasting for PodCidrError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_tls_have_remedies() {
        let silence =
            |failure, words: &str| NoResponseError::Connect(failure, words.to_owned()).to_string();
        let unknown = silence(
            ConnectError::Certificate(Certificate::Authority),
            "invalid peer certificate: UnknownIssuer",
        );
        assert!(
            unknown.starts_with(
                "invalid peer certificate: UnknownIssuer: the server's certificate is signed by"
            ),
            "{unknown}"
        );
        assert_eq!(silence(ConnectError::Refused, "tcp connect error"), "tcp connect error");
        assert_eq!(silence(ConnectError::Other, ""), "no reason was given");
    }
}
