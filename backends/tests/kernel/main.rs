//! Backends against a real kernel in a network namespace of the test's own, with `ip` and `bridge` as the judges.

// A test says what went wrong by panicking.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod bed;
mod blackhole;
mod golden;
mod heal;
mod manners;
mod scale;
