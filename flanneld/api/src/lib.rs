//! What a daemon says of its node: the document of `GET /api/v1/node`, which `flannelctl` and the page show.
//!
//! Names and texts in it come from the store and from other nodes. Whoever shows them makes them printable.

mod kernel;
mod node;
mod peer;

pub use kernel::{Kernel, Rules};
pub use node::{File, FileState, Lease, Node, Notice, Reason, Store, Underlay};
pub use peer::{Peer, Unused};

/// The schema of [`Node`].
pub const SCHEMA: &str = "flannel.node/1";
/// The path of the document, and the path of all that belongs to the API.
pub const NODE: &str = "/api/v1/node";
