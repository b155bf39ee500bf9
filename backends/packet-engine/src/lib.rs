//! The packet engine of the userspace backends: a TUN device on one side, UDP sockets on the other.
//!
//! The decision about a packet needs no I/O, only the packet and an immutable table. Super-packets pass as a whole: they are split on the way
//! out ([`split`]), and packets are merged into them on the way in ([`merge`]).

pub mod checksum;
pub mod counters;
pub mod ecn;
pub mod endpoint;
pub mod engine;
pub mod error;
pub mod features;
pub mod flow;
pub(crate) mod flow_schedule;
pub mod framing;
pub mod icmp;
pub mod limit;
pub mod martian;
pub mod merge;
pub mod packet;
pub mod partial_checksum;
mod prefixes;
pub mod reason;
pub mod socket;
pub mod split;
pub mod table;
pub mod tun;
pub mod verdict;
pub mod virtio;
pub mod wireguard;
