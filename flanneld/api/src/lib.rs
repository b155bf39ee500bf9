//! What a daemon says of its node: the document of `GET /api/v1/node`, which `flannelctl` and the page show.
//!
//! Names and texts in it come from the store and from other nodes. Whoever shows them makes them printable.

mod answers;
mod kernel;
mod node;
mod peer;
pub mod probe;
pub mod routes;

pub use answers::{PEERS, Peers, Probed, STATUS, Status};
pub use kernel::{FailedPeer, Kernel, Rules, Wireguard};
pub use node::{File, FileState, Lease, Node, Notice, Reason, Store, Underlay};
pub use peer::{Peer, Unused};
pub use probe::{PROBE, PROBE_PATH, Probe};

/// The schema of [`Node`].
pub const SCHEMA: &str = "flannel.node/1";
/// The path of the document.
pub const NODE: &str = "/api/v1/node";
/// The path of the comparison with the kernel, [`routes::Routes`]: on the socket alone.
pub const ROUTES: &str = "/api/v1/routes";
/// The path of the doctor's report, [`doctor::Report`].
pub const FINDINGS: &str = "/api/v1/findings";
