//! Computes kernel state from leases, compares it with the kernel, and applies the difference.
//!
//! A [`plan`] computes the desired state, and [`diff`] the operations; both are pure and deal in
//! [`object`]s. [`netlink`] applies the operations, and [`reconcile`] repeats all three steps.

#![warn(clippy::must_use_candidate)]

pub mod arp;
pub mod blackhole;
pub mod bridge;
pub mod cleanup;
pub mod diff;
pub mod encrypted;
pub mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod fit;
pub mod forwarding;
pub mod host;
pub mod inspect;
pub mod kernel;
pub mod link;
pub mod names;
pub mod netlink;
pub mod object;
pub mod packet_socket;
pub mod probe_port;
pub mod protocols;
pub mod route;
pub mod scope;
pub mod sighting;
pub mod survey;
pub mod text;
pub mod underlay;
pub mod wireguard;
