//! The documents that `flannelctl` prints with `-o json`, around the daemon's own.

use crate::node::Node;
use crate::peer::Peer;
use doctor::finding::DaemonState;
use probing::view::{self, Row};
use run_dir::exit_report::ExitReport;
use serde::{Deserialize, Serialize};

/// Name and version of the format of [`Status`].
pub const STATUS: &str = "flannel.status/1";
/// Name and version of the format of [`Peers`].
pub const PEERS: &str = "flannel.peers/1";

/// The document of `flannelctl status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Always [`STATUS`], by which readers recognise the format.
    pub schema: String,
    /// The name of this host.
    pub host: String,
    /// Whether a daemon runs here, and whether it answers.
    pub daemon: DaemonState,
    /// Why there is no document.
    pub trouble: Option<String>,
    /// The exit report of the last daemon; absent while one runs.
    #[serde(rename = "last_words")]
    pub exit_report: Option<ExitReport>,
    /// The daemon's document, if it answered.
    pub node: Option<Node>,
}

/// The document of `flannelctl peers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peers {
    /// Always [`PEERS`], by which readers recognise the format.
    pub schema: String,
    /// The name of the node that was asked: on Kubernetes the Node's, else the hostname.
    pub node: String,
    /// Whether this node probes its peers.
    pub probed: bool,
    /// The other nodes with a lease in force, in order of their subnets.
    pub peers: Vec<Probed>,
    /// Other nodes' rows, if they were requested.
    pub rows: Vec<Row>,
    /// How many other nodes answer probes, and so can send a row.
    #[serde(default)]
    pub answering: usize,
    /// How many of them sent none, or none lately; 0 if rows were not requested.
    #[serde(default)]
    pub missing: usize,
}

/// A peer, and the verdict of probes on it in each address family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// The peer by its lease.
    pub peer: Peer,
    /// Verdicts, one an address family; empty where it is not probed.
    pub verdicts: Vec<view::PeerView>,
}
