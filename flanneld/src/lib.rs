//! The node daemon: leases a subnet for this node, and passes other nodes' leases to the backend, which connects the
//! nodes.

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "log lines and responses pass through `printable`"
)]

pub mod api;
pub mod checks;
pub mod cni_conf;
pub mod daemon;
pub mod error;
pub mod handover;
pub mod health;
pub mod identity;
pub mod logging;
pub mod memory;
pub mod mesh;
pub mod network;
pub mod pod_probes;
pub mod probe;
pub mod sampler;
pub mod status_keeper;
pub mod subnet_env_keeper;
pub mod systemd;
pub mod traffic;
pub mod underlay;
