//! Computes kernel state from leases, compares it with the kernel, and applies the difference.
//!
//! A plan computes the desired state, and [`diff`] the operations; both are pure and deal in
//! [`object`]s. [`netlink`] applies the operations.

#![warn(clippy::must_use_candidate)]

pub mod blackhole;
pub mod cleanup;
pub mod diff;
pub mod encrypted;
pub mod host;
pub mod kernel;
pub mod kinds;
pub mod names;
pub mod netlink;
pub mod object;
pub mod report;
pub mod scope;
#[cfg(any(test, feature = "fake"))]
pub mod tests;
pub mod underlay;

pub use kernel::{
    ExistingState, Facts, FailureKind, Forwarding, Kernel, KernelError, NextHop, OpError, Sessions,
    WireguardKernel,
};
pub use names::{LinkName, Mac};
pub use netlink::NetlinkKernel;
pub use object::link::ipip::IpipSpec;
pub use object::link::vxlan::VxlanSpec;
pub use object::link::wireguard::WireguardSpec;
pub use object::link::{LinkKind, LinkSpec};
pub use object::route::{RouteKind, RouteSpec};
pub use object::wireguard_peer::{PublicKey, Secret, Session, WireguardPeer};
pub use object::{KernelState, Key, Op, Value};
pub use scope::Scope;
pub use underlay::Underlay;
