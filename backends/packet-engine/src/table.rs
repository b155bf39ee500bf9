//! Immutable forwarding table, built from the leases.

pub mod prefixes;

use crate::table::prefixes::DualPrefixes;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, SocketAddr};

/// Checks of a received packet besides those of lengths, version and TTL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// The datagram comes from a peer, and the packet is for this node's subnets. A source inside the pod
    /// network must be in the sending peer's subnets, or be its own address. A source outside is accepted,
    /// because nodes may forward packets of other hosts.
    #[default]
    Cluster,
    /// Also rejects sources outside the pod network.
    Strict,
    /// No check of the sender or of inner addresses, not even for martian addresses.
    Off,
}

/// One network of each family, one of either, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    pub v4: Option<Ipv4Net>,
    pub v6: Option<Ipv6Net>,
}

impl Networks {
    #[inline]
    fn contains(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4.is_some_and(|net| net.contains(&ip)),
            IpAddr::V6(ip) => self.v6.is_some_and(|net| net.contains(&ip)),
        }
    }
}

/// The peer that serves a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The destination of this node's datagrams, and the source of the peer's.
    pub address: SocketAddr,
    /// The MAC of the peer's VTEP; zero with the udp backend.
    pub mac: [u8; 6],
    /// Whether the peer accepts IPv6.
    pub carries_v6: bool,
    /// Whether it honours the outer ECN field (RFC 6040 normal mode).
    pub outer_ecn: bool,
}

/// All of a forwarding table but its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSettings {
    /// The networks of the cluster.
    pub networks: Networks,
    /// This node's subnets.
    pub own: Networks,
    pub checks: Checks,
    /// The longest inner packet in bytes.
    pub mtu: u16,
    /// Whether the tunnel is a hop that decrements the TTL (udp), or a link (vxlan).
    pub routed: bool,
    /// The UDP port of the encapsulation.
    pub encap_port: u16,
    /// To which peers send, if known.
    pub address: Option<IpAddr>,
}

/// Maps destinations to peers, and knows the sources that a peer may use.
#[derive(Clone, Debug)]
pub struct Table {
    pub settings: TableSettings,
    /// Subnets that are left out, because their peer's address is itself inside a leased subnet. Datagrams to
    /// this peer would loop.
    pub refused: Vec<IpNet>,
    peers: Vec<Peer>,
    subnets: DualPrefixes,
    /// Sorted.
    known_v4: Vec<u32>,
    known_v6: Vec<u128>,
}

impl Table {
    /// If two entries have the same subnet, the last one applies.
    pub fn build(settings: TableSettings, peers: impl IntoIterator<Item = (IpNet, Peer)>) -> Self {
        let canonical = |(subnet, mut peer): (IpNet, Peer)| {
            peer.address.set_ip(peer.address.ip().to_canonical());
            (subnet, peer)
        };
        let peers: Vec<(IpNet, Peer)> = peers.into_iter().map(canonical).collect();
        let table = Self::build_with_all_peers(settings, &peers);
        let (inside, outside): (Vec<_>, Vec<_>) =
            peers.into_iter().partition(|(_, peer)| table.is_leased(peer.address.ip()));
        if inside.is_empty() {
            return table;
        }
        Self {
            refused: inside.into_iter().map(|(subnet, _)| subnet).collect(),
            ..Self::build_with_all_peers(settings, &outside)
        }
    }

    fn build_with_all_peers(settings: TableSettings, peers: &[(IpNet, Peer)]) -> Self {
        let (mut known_v4, mut known_v6) = (Vec::new(), Vec::new());
        for (_, peer) in peers {
            match peer.address.ip() {
                IpAddr::V4(ip) => known_v4.push(ip.to_bits()),
                IpAddr::V6(ip) => known_v6.push(ip.to_bits()),
            }
        }
        known_v4.sort_unstable();
        known_v4.dedup();
        known_v6.sort_unstable();
        known_v6.dedup();
        Self {
            settings,
            refused: Vec::new(),
            peers: peers.iter().map(|(_, peer)| *peer).collect(),
            subnets: DualPrefixes::build(peers.iter().map(|(subnet, _)| *subnet).zip(0..)),
            known_v4,
            known_v6,
        }
    }

    /// In a leased subnet of a peer or of this node.
    fn is_leased(&self, ip: IpAddr) -> bool {
        self.in_network(ip) && (self.in_own_subnet(ip) || self.lookup(ip).is_some())
    }

    /// The longest prefix takes precedence.
    #[inline]
    #[must_use]
    pub fn lookup(&self, ip: IpAddr) -> Option<&Peer> {
        self.peers.get(self.subnets.find_peer_index(ip)? as usize)
    }

    /// Whether it is a peer's public address.
    #[inline]
    #[must_use]
    pub fn is_peer_address(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.known_v4.binary_search(&ip.to_bits()).is_ok(),
            IpAddr::V6(ip) => self.known_v6.binary_search(&ip.to_bits()).is_ok(),
        }
    }

    /// Whether it is the tunnel's port at an address of a peer or of this node.
    #[inline]
    pub(crate) fn is_tunnel_end(&self, to: SocketAddr) -> bool {
        to.port() == self.settings.encap_port
            && (self.is_peer_address(to.ip()) || self.settings.address == Some(to.ip()))
    }

    /// In this node's subnets.
    #[inline]
    #[must_use]
    pub fn in_own_subnet(&self, ip: IpAddr) -> bool {
        self.settings.own.contains(ip)
    }

    /// True for the last address of this node's IPv4 subnet, if it has more than two (RFC 919, RFC 3021).
    #[inline]
    #[must_use]
    pub fn is_own_broadcast(&self, ip: IpAddr) -> bool {
        self.settings.own.v4.is_some_and(|net| net.prefix_len() < 31 && net.broadcast() == ip)
    }

    /// In the cluster's networks.
    #[inline]
    #[must_use]
    pub fn in_network(&self, ip: IpAddr) -> bool {
        self.settings.networks.contains(ip)
    }
}

#[cfg(test)]
mod tests;
