//! Who has which subnet: leases, their wire format, and the managers that keep them.
//!
//! Knows nothing of kernels. Without its store features it is the model alone, which is what backends depend on.

pub mod alloc;
pub mod config;
#[cfg(feature = "dir")]
pub mod dir;
pub mod dual;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod json;
pub mod lease;
pub mod printable;
pub mod table;
pub mod wire;

#[cfg(feature = "protocol")]
pub mod admission;
#[cfg(feature = "protocol")]
pub mod feed;
#[cfg(feature = "protocol")]
pub mod hold_down;
#[cfg(feature = "protocol")]
pub mod manager;
#[cfg(feature = "protocol")]
pub mod protocol;
#[cfg(feature = "protocol")]
mod reading;
#[cfg(feature = "protocol")]
pub mod reason;

pub use config::NetworkConfig;
pub use dual::{Addresses, Dual, Subnets, nets_overlap};
pub use lease::{Lease, LeaseAttrs, NodeId, RawJson, Term};
pub use table::{Kinds, LeaseEvent, LeaseTable, Peer};
