//! Tests with Kubernetes: the Node API of a real API server as the lease store, and whole clusters of real nodes.

mod checks;
pub(crate) mod cluster_doctor;
mod conformance;
mod doctor;
mod flannel;
mod installed;
mod node_api;
pub(crate) mod operations;
mod rights;
mod streams;
pub(crate) mod testbed;
mod udp;
mod upstream;
mod vagrant;
mod vm;
