//! The packet engine of the userspace backends.
//!
//! What is to become of a packet is decided without I/O, from the packet and a table that was built whole.

pub mod checksum;
pub mod ecn;
pub mod icmp;
pub mod limit;
pub mod packet;
pub mod table;
pub mod verdict;
