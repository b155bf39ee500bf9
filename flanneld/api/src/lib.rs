//! JSON documents of the status API and of `flannelctl`. The main document is the response to `GET /api/v1/node`.
//!
//! The names and texts in them originate in the store and in other nodes. Programs must escape them before they
//! print.

mod answers;
mod cluster;
pub mod facts;
mod kernel;
mod node;
mod peer;
pub mod probe;
pub mod query;
pub mod routes;
mod sentence;
pub mod view;

pub use answers::{PEERS, Peers, Probed, STATUS, Status};
pub use cluster::{CLUSTER, Cluster, Consequence, Shared, Source, Unanswered};
pub use kernel::{FailedPeer, Kernel, Rules, Wireguard};
pub use node::{
    File, FileState, Lease, LostPods, Node, NodeNetwork, Notice, PodPath, Readiness, Reason, Store,
    StoreKind, Underlay,
};
pub use peer::{Peer, Unused};
pub use probe::{PROBE, PROBE_PATH, Probe};

/// Name and version of the JSON format of [`Node`].
pub const SCHEMA: &str = "flannel.node/1";
/// Request target of the document [`Node`].
pub const NODE: &str = "/api/v1/node";
/// Also makes the daemon collect the reports of other nodes for some seconds.
pub const NODE_AND_ROWS: &str = "/api/v1/node?rows";
/// Path of the comparison of the desired and actual kernel state, [`routes::Routes`]. Only the Unix socket serves it.
pub const ROUTES: &str = "/api/v1/routes";
/// Path of the document of the status page, [`view::View`]. The query `?row=SUBNET` selects one node's report, [`view::RowDetails`].
pub const VIEW: &str = "/api/v1/view";
/// Path of the doctor's report, [`doctor::Report`].
pub const FINDINGS: &str = "/api/v1/findings";
