//! The backends, which carry packets between nodes. Each has its own file or folder and an entry in
//! the [`registry`].
//!
//! Backends are independent of stores: a backend announces attributes, the daemon acquires the
//! lease, then the node joins the network.

pub mod alloc;
pub mod backend;
mod config_keys;
mod error;
pub mod host_gw;
pub mod ipip;
mod network;
pub mod registry;
pub mod status;
#[cfg(test)]
mod tests;
pub mod udp;
mod userspace;
pub mod vxlan;
pub mod wireguard;

pub use backend::{Backend, KeyRequests, Overlay, Setup, Takes};
pub use netstate::Underlay;
pub use network::join_network;
pub use reconcile::failures::FailedPeer;
pub use reconcile::{Announced, Inputs, Options};
pub use registry::{
    backend_names, create_backend, identities_in_kernel, identity_of, profile, profiles, rules,
};
pub use status::Status;
pub use userspace::handover::Store;
