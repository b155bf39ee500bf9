//! Probing between nodes: each node probes its peers over the overlay and over the underlay, and compares the results to locate a fault.
//!
//! The code that makes decisions has no side effects and needs no async runtime. Only the sockets require the feature
//! `prober`. `flannelctl` uses only the data types of [`view`] and [`pods`], without sockets.

pub mod limits;
pub mod mtu;
pub mod node;
pub mod pods;
#[cfg(feature = "prober")]
pub mod prober;
pub mod rows;
pub mod schedule;
pub mod target;
pub mod verdict;
pub mod view;
pub mod who;
pub mod wire;
