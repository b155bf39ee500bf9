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
