//! This node's Node.

use std::net::IpAddr;
use types::Problem;

/// What the API server says, or does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// The Node's name.
    pub node: String,
    /// Its podCIDRs; `None` while the Node is not known.
    pub pod_cidrs: Option<Vec<String>>,
    /// The network from which Nodes should get their podCIDRs, where that is known: `--cluster-cidr` of the controller manager.
    pub cluster_cidr: Option<String>,
    /// Its InternalIPs.
    pub internal: Vec<IpAddr>,
    /// The server's refusal: 401 or 403.
    pub refusal: Option<Problem>,
    /// The server's address, and whether it is the Service's.
    pub server: Option<IpAddr>,
    /// An address of the Services: that of the API's, where this is a pod.
    pub service: Option<IpAddr>,
    /// Whether the API is asked by its Service and does not answer.
    pub by_service_unanswered: bool,
}
