//! Facts about this node's Node object.

use std::net::IpAddr;
use types::Problem;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    pub node: String,
    /// `None` while the Node is unknown.
    pub pod_cidrs: Option<Vec<String>>,
    /// `--cluster-cidr` of the controller manager: the network from which Nodes should get their podCIDRs.
    pub cluster_cidr: Option<String>,
    /// The InternalIP addresses of the Node.
    pub internal: Vec<IpAddr>,
    /// The error with which the API server refused a request (401 or 403).
    pub refusal: Option<Problem>,
    /// Where flanneld connects to the API server.
    pub server: Option<IpAddr>,
    /// The API server's Service, if flanneld runs in a pod.
    pub service: Option<IpAddr>,
    /// flanneld uses the API server's Service address but gets no response from it.
    pub by_service_unanswered: bool,
}
