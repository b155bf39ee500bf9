//! The documents of the status API, of which `GET /api/v1/node` is the main one. `flannelctl` prints them.
//!
//! Names and texts in them come from the store and from other nodes. A program that prints them escapes them.

mod answers;
mod cluster;
mod kernel;
mod node;
mod peer;
pub mod probe;
pub mod routes;

pub use answers::{PEERS, Peers, Probed, STATUS, Status};
pub use cluster::{CLUSTER, Cluster, Consequence, Shared, Source, Unanswered};
pub use kernel::{FailedPeer, Kernel, Rules, Wireguard};
pub use node::{
    File, FileState, Lease, LostPods, Node, NodeNetwork, Notice, PodPath, Readiness, Reason, Store,
    StoreKind, Underlay,
};
pub use peer::{Peer, Unused};
pub use probe::{PROBE, PROBE_PATH, Probe};

/// Name and version of the format of [`Node`].
pub const SCHEMA: &str = "flannel.node/1";
/// The path of the document.
pub const NODE: &str = "/api/v1/node";
/// The same, and from then on for some seconds what other nodes report.
pub const NODE_AND_ROWS: &str = "/api/v1/node?rows";
/// The path of the comparison with the kernel, [`routes::Routes`]. Only the socket serves it.
pub const ROUTES: &str = "/api/v1/routes";
/// The path of the doctor's report, [`doctor::Report`].
pub const FINDINGS: &str = "/api/v1/findings";
