//! Packet engine of the userspace datapath: a TUN device on one side, UDP sockets on the other.
//!
//! The forwarding decision needs no I/O: it depends only on the packet and an immutable table. It applies to
//! a GSO packet, which holds several segments, as a whole. [`split`] splits GSO packets before they are sent,
//! and [`merge`] merges received packets into GSO packets.

#![warn(clippy::must_use_candidate)]

pub mod counters;
pub mod drop_error;
pub mod encryption;
pub mod engine;
pub mod features;
pub mod flow;
pub mod merge;
pub mod packet;
pub mod socket;
pub mod split;
pub mod table;
pub mod tun;
pub mod verdict;

pub use counters::Counters;
pub use engine::config::EngineConfig;
pub use engine::{Engine, Inheritance};
pub use features::Features;
pub use packet::framing::Framing;
pub use socket::Socket;
pub use table::{Checks, Networks, Table, TableSettings};
pub use tun::Tun;
