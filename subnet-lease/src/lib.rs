//! Who has which subnet: leases, their wire format, and the managers that keep them.
//!
//! It knows nothing of kernels. Its features are layers:
//!
//! - none: the model alone, which is what backends depend on;
//! - `managers`: the [`SubnetManager`](manager::SubnetManager) trait, admission and the feed; a store of any kind builds on these;
//! - `protocol`: getting and keeping a lease in a store of keys, by compare-and-swap;
//! - `etcd`, `dir`: the stores that speak that protocol;
//! - `kube`: the Nodes of a Kubernetes cluster, whose subnets the cluster assigns.

pub mod alloc;
pub mod config;
pub mod json;
pub mod lease;
pub mod table;
pub mod wire;

#[cfg(feature = "managers")]
pub mod admission;
#[cfg(feature = "managers")]
pub mod claim;
#[cfg(feature = "managers")]
pub mod entry;
#[cfg(feature = "managers")]
pub mod feed;
#[cfg(any(feature = "etcd", feature = "kube"))]
mod foreign;
#[cfg(feature = "managers")]
pub mod hold_down;
#[cfg(feature = "managers")]
pub mod manager;
#[cfg(feature = "managers")]
pub mod reason;

#[cfg(feature = "dir")]
pub mod dir;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "kube")]
pub mod kube;
#[cfg(feature = "protocol")]
pub mod protocol;

pub use config::NetworkConfig;
pub use lease::{Lease, LeaseAttrs, NodeId, PeerRules, RawJson, Term};
pub use table::{Kinds, LeaseEvent, LeaseTable, Peer};
