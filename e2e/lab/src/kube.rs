//! Kubernetes in the lab: a single API server for the daemon's requests, or a whole cluster of real nodes.

#![allow(
    clippy::indexing_slicing,
    reason = "only JSON values: a missing value reads as null, and writes go only to objects"
)]

pub(crate) mod api_server;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod door;
pub(crate) mod fake;
pub(crate) mod http;
pub(crate) mod node;
pub(crate) mod proxy;
pub(crate) mod users;
