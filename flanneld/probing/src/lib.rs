//! How nodes probe each other: each node asks its peers over the overlay and over the underlay, and concludes from the answers which path is
//! broken.
//!
//! What is decided is pure and has no runtime; sockets are behind the feature `prober`. `flannelctl` uses [`view`] and links no socket.

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
