//! Subnet leases of nodes: the model, the wire format, and the managers that keep leases in a store.
//!
//! This crate does not depend on the kernel's configuration interfaces. It consists of layers, which Cargo features add to the model:
//!
//! - no feature: only the model, on which backends depend;
//! - `managers`: the [`SubnetManager`](manager::SubnetManager) trait, admission and the feed, on which every store builds;
//! - `protocol`: acquires and keeps a lease in a key-value store by compare-and-swap;
//! - `etcd`, `dir`: the stores that use that protocol;
//! - `kube`: the store that reads the subnets from the Nodes of a Kubernetes cluster.

#![warn(clippy::must_use_candidate)]

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
mod file;
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
