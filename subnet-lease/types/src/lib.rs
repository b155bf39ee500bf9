//! Types that all crates share. Network types: address families, subnets, encapsulation, profiles of backends and reachability. General types:
//! problems as values, delays between attempts, and text that is safe to print.
//!
//! This crate depends on no store, kernel or daemon.

#![warn(clippy::must_use_candidate)]

extern crate self as types;

pub mod access;
pub mod backoff;
pub mod daemon_pod;
pub mod dual;
pub mod encapsulation;
pub mod errno;
pub mod family;
pub mod file;
pub mod histogram;
pub mod kernel_object;
pub mod printable;
pub mod problem;
pub mod profile;
pub mod reachability;
pub mod wireguard;

pub use access::Access;
pub use coded::Coded;
pub use daemon_pod::DaemonPod;
pub use dual::{Addresses, Dual, Subnets, barred_by, nets_overlap};
pub use encapsulation::Encapsulation;
pub use errno::Errno;
pub use family::Family;
pub use histogram::{Durations, Histogram};
pub use problem::{Coded, Detail, Problem};
pub use profile::Profile;
