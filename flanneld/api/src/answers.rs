//! What `flannelctl` prints with `-o json`, around the document.

use crate::node::Node;
use crate::peer::Peer;
use doctor::finding::DaemonState;
use probing::view::{self, Row};
use run_dir::exit_report::ExitReport;
use serde::{Deserialize, Serialize};

/// The schema of [`Status`].
pub const STATUS: &str = "flannel.status/1";
/// The schema of [`Peers`].
pub const PEERS: &str = "flannel.peers/1";

/// What `flannelctl status` found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS`].
    pub schema: String,
    /// The name of this host.
    pub host: String,
    /// Whether a daemon runs.
    pub daemon: DaemonState,
    /// Why there is no document.
    pub trouble: Option<String>,
    /// What the last daemon said when it ended; absent while one runs.
    #[serde(rename = "last_words")]
    pub exit_report: Option<ExitReport>,
    /// The daemon's document.
    pub node: Option<Node>,
}

/// What `flannelctl peers` found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peers {
    /// [`PEERS`].
    pub schema: String,
    /// This node's name.
    pub node: String,
    /// Whether peers are probed.
    pub probed: bool,
    /// The peers, by subnet.
    pub peers: Vec<Probed>,
    /// Other nodes' rows, if they were asked for.
    pub rows: Vec<Row>,
}

/// A peer, and what probes tell of it in each address family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// The peer.
    pub peer: Peer,
    /// Verdicts, one an address family; empty where it is not probed.
    pub verdicts: Vec<view::Peer>,
}
