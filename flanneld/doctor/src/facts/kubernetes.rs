//! Facts about this node's Node object.

use std::net::IpAddr;
use types::Problem;

/// Facts about this node from the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// The name of this node's Node object.
    pub node: String,
    /// The podCIDRs of this node's Node object; `None` while the Node is unknown.
    pub pod_cidrs: Option<Vec<String>>,
    /// The network from which Nodes should get their podCIDRs, from `--cluster-cidr` of the controller manager; `None` if unknown.
    pub cluster_cidr: Option<String>,
    /// The InternalIP addresses of this node's Node object.
    pub internal: Vec<IpAddr>,
    /// The error with which the API server refused a request (401 or 403); `None` if the server refused no request.
    pub refusal: Option<Problem>,
    /// The address at which flanneld connects to the API server.
    pub server: Option<IpAddr>,
    /// The address of the API server's Service, if flanneld runs in a pod.
    pub service: Option<IpAddr>,
    /// Whether flanneld uses the API server's Service address but gets no response from it.
    pub by_service_unanswered: bool,
}
