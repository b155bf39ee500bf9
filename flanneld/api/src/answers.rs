//! JSON documents that `flannelctl status` and `flannelctl peers` print with `-o json`. They contain parts of the
//! status API's documents.

use crate::node::Node;
use crate::peer::Peer;
use doctor::finding::DaemonState;
use probing::view::{self, Row};
use run_dir::exit_report::ExitReport;
use serde::{Deserialize, Serialize};

/// Name and version of the JSON format of [`Status`].
pub const STATUS: &str = "flannel.status/1";
/// Name and version of the JSON format of [`Peers`].
pub const PEERS: &str = "flannel.peers/1";

/// Document of `flannelctl status -o json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Always [`STATUS`].
    pub schema: String,
    /// Name of this host.
    pub host: String,
    /// Whether a daemon runs on this host and responds.
    pub daemon: DaemonState,
    /// Why `node` is absent.
    pub trouble: Option<String>,
    /// Of the last daemon; absent while a daemon runs.
    #[serde(rename = "last_words")]
    pub exit_report: Option<ExitReport>,
    /// Absent unless the daemon responded.
    pub node: Option<Node>,
}

/// Document of `flannelctl peers -o json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peers {
    /// Always [`PEERS`].
    pub schema: String,
    /// Name of the node whose daemon flannelctl queried: on Kubernetes the Node's name, otherwise the hostname.
    pub node: String,
    /// Whether this node probes its peers.
    pub probed: bool,
    /// Other nodes with a valid lease, ordered by subnet.
    pub peers: Vec<Probed>,
    /// The other nodes' verdicts on their own peers; empty unless the client requests reports.
    pub rows: Vec<Row>,
    /// Number of other nodes that reply to probes and can therefore send a report.
    #[serde(default)]
    pub answering: usize,
    /// Number of nodes in `answering` that sent no report recently; 0 if the client did not request reports.
    #[serde(default)]
    pub missing: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// As its lease describes it.
    pub peer: Peer,
    /// One verdict per address family; empty if this node does not probe the peer.
    pub verdicts: Vec<view::PeerView>,
}
