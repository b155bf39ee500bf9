//! Cryptokey routing: maps an inner address to its peer. The allowed IP with the longest prefix takes
//! precedence, for sent and for received packets.

use crate::table::prefixes::{ByLength, NONE, Prefixes};
use ipnet::IpNet;
use std::net::IpAddr;

/// The allowed IPs of all peers.
#[derive(Debug)]
pub(super) struct Routes {
    v4: Prefixes<u32>,
    v6: Prefixes<u128>,
}

impl Routes {
    /// `allowed` holds allowed IPs and the slots of their peers.
    pub(super) fn build(allowed: impl Iterator<Item = (IpNet, u32)>) -> Self {
        let (mut v4, mut v6) = (ByLength::new(), ByLength::new());
        for (net, slot) in allowed {
            match net {
                IpNet::V4(net) => v4.insert((net.prefix_len(), net.network().to_bits()), slot),
                IpNet::V6(net) => v6.insert((net.prefix_len(), net.network().to_bits()), slot),
            };
        }
        Self { v4: Prefixes::build(&v4), v6: Prefixes::build(&v6) }
    }

    /// The slot of the peer to which an address belongs.
    #[inline]
    pub(super) fn lookup(&self, ip: IpAddr) -> Option<u32> {
        let slot = match ip {
            IpAddr::V4(ip) => self.v4.find_peer_index(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.find_peer_index(ip.to_bits()),
        };
        (slot != NONE).then_some(slot)
    }
}
