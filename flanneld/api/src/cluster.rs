//! Findings of all nodes, as `flannelctl doctor --cluster -o json` prints them.

use doctor::Finding;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Name and version of the JSON format of [`Cluster`].
pub const CLUSTER: &str = "flannel.cluster/1";

/// Findings of the doctors of all nodes, grouped by cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Always [`CLUSTER`]; identifies the format of the document.
    pub schema: String,
    /// Time of the queries to the nodes.
    pub at: Timestamp,
    /// Method with which flannelctl queried the nodes.
    pub source: Source,
    /// Nodes that responded.
    pub answered: Vec<String>,
    /// Nodes that did not respond.
    pub unanswered: Vec<Unanswered>,
    /// Findings that no other finding explains, the most severe finding first.
    pub findings: Vec<Shared>,
}

/// Method with which flannelctl queried the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Runs of the doctor in flannel's pod on each node, through the Kubernetes API.
    Pods,
    /// Probes with which this node's daemon queried the other nodes. This node's own findings are complete.
    Probes,
}

/// A node that did not respond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// Name of the node.
    pub node: String,
    /// Reason why the node's findings are unknown.
    pub why: String,
}

/// A finding that several nodes may share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// Nodes that have the finding.
    pub nodes: Vec<String>,
    /// The finding as this node reports it. Of other nodes' findings only the check, the severity and the peers are theirs.
    pub finding: Finding,
    /// Findings of other nodes that are consequences of this finding.
    pub explains: Vec<Consequence>,
}

/// A finding that another node's finding explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consequence {
    /// Node that reports the finding.
    pub node: String,
    /// Check that produced the finding.
    pub check: String,
    /// The fault, in one sentence.
    pub what: String,
}
