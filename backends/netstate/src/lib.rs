//! Kernel state: computed from leases, compared with what the kernel holds, and applied.
//!
//! A [`plan`] says what the leases demand; [`diff`] says what has to be done; [`netlink`] does it; [`reconcile`] is the loop around them.
//! Plans and differences are pure. What they speak of are [`object`]s, of which each kind has a file of its own.

pub mod blackhole;
pub mod cleanup;
pub mod desired;
pub mod diff;
#[cfg(test)]
mod fake;
pub mod fit;
pub mod forwarding;
pub mod kernel;
pub mod link;
pub mod names;
pub mod netlink;
pub mod object;
pub mod peers;
pub mod plan;
pub mod reconcile;
pub mod route;
pub mod scope;
pub mod underlay;
