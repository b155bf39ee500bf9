//! Kubernetes in the lab: a single API server for the daemon's requests, or a whole cluster of real nodes.

#![allow(
    clippy::indexing_slicing,
    reason = "of JSON values only: what is not there reads as null, and what is written to is an object"
)]

pub(crate) mod api_server;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod door;
pub(crate) mod http;
pub(crate) mod node;
pub(crate) mod proxy;
pub(crate) mod users;
