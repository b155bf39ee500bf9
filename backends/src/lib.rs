//! The backends: ways to carry packets between nodes. Each has a file or folder of its own and a line in the [`registry`].
//!
//! Independent of stores: a backend announces attributes, the daemon acquires the lease, then the backend joins.

pub mod alloc;
pub mod backend;
pub mod handover;
pub mod host_gw;
pub mod ipip;
mod network;
pub mod registry;
pub mod status;
pub mod udp;
mod userspace;
pub mod vxlan;
pub mod wireguard;

pub use backend::{Accepts, Backend, Error, Network, Overlay, Refusal, Renewal, Setup, Takes};
pub use netstate::plan::Announced;
pub use netstate::reconcile::failures::FailedPeer;
pub use netstate::reconcile::{Inputs, Options};
pub use netstate::underlay::Underlay;
pub use registry::{create, identity_of, names, profile, profiles};
pub use status::Status;
