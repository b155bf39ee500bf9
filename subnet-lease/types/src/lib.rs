//! The words that all crates share: address families, subnets, problems as values, reachability, pauses between attempts, and text that is safe to
//! print.
//!
//! It knows no store, no kernel and no daemon.

pub mod backoff;
pub mod dual;
pub mod errno;
pub mod family;
pub mod printable;
pub mod problem;
pub mod reachability;

pub use dual::{Addresses, Dual, Subnets, nets_overlap};
pub use errno::Errno;
pub use family::Family;
pub use problem::{Coded, Detail, Problem};
