//! Facts about this node's Node object.

use std::net::IpAddr;
use types::Problem;

/// Facts from the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// The name of this node's Node object.
    pub node: String,
    /// The Node's podCIDRs; `None` while the Node is unknown.
    pub pod_cidrs: Option<Vec<String>>,
    /// The network from which Nodes should get their podCIDRs, if known: `--cluster-cidr` of the controller manager.
    pub cluster_cidr: Option<String>,
    /// The InternalIPs of the Node.
    pub internal: Vec<IpAddr>,
    /// The error with which the API server refused a request (401 or 403); `None` if the server refused no request.
    pub refusal: Option<Problem>,
    /// The address of the API server that flanneld uses.
    pub server: Option<IpAddr>,
    /// The address of the API server's Service, if flanneld runs in a pod.
    pub service: Option<IpAddr>,
    /// Whether flanneld uses the API server's Service address but gets no response from it.
    pub by_service_unanswered: bool,
}
