//! The findings of all nodes, as `flannelctl doctor --cluster -o json` prints them.

use doctor::Finding;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Name and version of the format of [`Cluster`].
pub const CLUSTER: &str = "flannel.cluster/1";

/// What the doctors of all nodes found, folded by cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Always [`CLUSTER`], by which readers recognise the format.
    pub schema: String,
    /// When the nodes were asked.
    pub at: Timestamp,
    /// How they were asked.
    pub source: Source,
    /// The nodes that answered.
    pub answered: Vec<String>,
    /// The nodes that did not.
    pub unanswered: Vec<Unanswered>,
    /// The findings that nothing explains, the most severe first.
    pub findings: Vec<Shared>,
}

/// How the nodes were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Their doctors were run by `exec` in flannel's pods: whole findings.
    Pods,
    /// This node's daemon asked the others: the names of their checks alone.
    Probes,
}

/// A node that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// Its name.
    pub node: String,
    /// Why its findings are not known.
    pub why: String,
}

/// A finding that several nodes may share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// The nodes that have it.
    pub nodes: Vec<String>,
    /// The finding as the first of these nodes reports it.
    pub finding: Finding,
    /// Findings of other nodes that are consequences of it.
    pub explains: Vec<Consequence>,
}

/// A finding that another node's finding explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consequence {
    /// The node that reports it.
    pub node: String,
    /// The check that found it.
    pub check: String,
    /// What is wrong, in one sentence.
    pub what: String,
}
