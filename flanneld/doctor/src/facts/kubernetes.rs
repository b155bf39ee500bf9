//! This node's Node.

use std::net::IpAddr;
use types::Problem;

/// Facts from the API server of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// The name of this node's Node.
    pub node: String,
    /// Its podCIDRs; `None` while the Node is not known.
    pub pod_cidrs: Option<Vec<String>>,
    /// The network from which Nodes should get their podCIDRs, where that is known: `--cluster-cidr` of the controller manager.
    pub cluster_cidr: Option<String>,
    /// The InternalIPs of the Node.
    pub internal: Vec<IpAddr>,
    /// The server's refusal (401 or 403); `None` if it refuses nothing.
    pub refusal: Option<Problem>,
    /// The address at which the API server is reached.
    pub server: Option<IpAddr>,
    /// An address of the Services: that of the API's, where this is a pod.
    pub service: Option<IpAddr>,
    /// Whether the API is asked by its Service and does not answer.
    pub by_service_unanswered: bool,
}
