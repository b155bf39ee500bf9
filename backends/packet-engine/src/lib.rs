//! The packet engine of the userspace backends: a TUN device on one side, UDP on the other.
//!
//! What is to become of a packet is decided without I/O, from the packet and a table that was built whole. Super-packets go through
//! it as they are; they are cut on the way out ([`split`]) and put together on the way in ([`merge`]).

pub mod checksum;
pub mod counters;
pub mod ecn;
pub mod engine;
pub mod features;
pub mod flow;
pub mod flow_schedule;
pub mod framing;
pub mod icmp;
pub mod limit;
pub mod martian;
pub mod merge;
pub mod packet;
pub mod reason;
pub mod socket;
pub mod split;
pub mod table;
pub mod tun;
pub mod unfinished;
pub mod verdict;
pub mod virtio;
