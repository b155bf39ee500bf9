//! Tests on hosts in network namespaces. All tests are in one program, so that the tests wait in parallel and Cargo links only once.
//!
//! One suite: `cargo test -p e2e -- rules::`. One test: `cargo test -p e2e -- rules::repair::a_name`, or a part of its name.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows it in tests, but does not know their helpers"
)]

mod cni;
mod daemon;
mod datapath;
mod doctor;
mod flannelctl;
mod healing;
mod install;
mod kube;
mod lease;
mod mesh;
mod rules;
mod traffic;
mod vm;
mod wireguard;
