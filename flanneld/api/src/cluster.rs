//! Findings of all nodes, as `flannelctl doctor --cluster -o json` prints them.

use doctor::Finding;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Name and version of the JSON format of [`Cluster`].
pub const CLUSTER: &str = "flannel.cluster/1";

/// Findings of the doctors of all nodes, grouped by cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Always [`CLUSTER`].
    pub schema: String,
    /// Time of the queries to the nodes.
    pub at: Timestamp,
    pub source: Source,
    pub answered: Vec<String>,
    pub unanswered: Vec<Unanswered>,
    /// Findings that no other finding explains, the most severe finding first.
    pub findings: Vec<Shared>,
}

/// How flannelctl queried the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Runs of the doctor in flannel's pod on each node, through the Kubernetes API.
    Pods,
    /// Probes with which this node's daemon queried the other nodes. Its own findings are complete.
    Probes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    pub node: String,
    /// Why its findings are unknown.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    pub nodes: Vec<String>,
    /// As this node reports it. Of other nodes' findings only the check, the severity and the peers are theirs.
    pub finding: Finding,
    /// Findings of other nodes that are consequences of this one.
    pub explains: Vec<Consequence>,
}

/// A finding that another node's finding explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consequence {
    pub node: String,
    pub check: String,
    /// The fault, in one sentence.
    pub what: String,
}
