//! Tests of the backends with a real kernel, each in its own network namespace, with checks by `ip`
//! and `bridge`.

// Tests report failures by panicking.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod bed;
mod blackhole;
mod foreign;
mod golden;
mod inspect;
mod repair;
mod scale;
#[cfg(feature = "wireguard-userspace")]
mod wireguard_userspace;
