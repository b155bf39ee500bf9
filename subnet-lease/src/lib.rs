//! Who has which subnet: leases, their wire format, and the managers that keep them.
//!
//! Knows nothing of kernels. Without its store features it is the model alone, which is what backends depend on.

pub mod alloc;
pub mod config;
pub mod dual;
pub mod json;
pub mod lease;
pub mod table;
pub mod wire;

pub use config::NetworkConfig;
pub use dual::{Addresses, Dual, Subnets, nets_overlap};
pub use lease::{Lease, LeaseAttrs, NodeId, RawJson, Term};
pub use table::{Kinds, LeaseEvent, LeaseTable, Peer};
