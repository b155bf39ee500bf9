//! Snapshot of a device for the threads: identity, peers by slot and by key, and allowed IPs. A change
//! replaces it as a whole.

use crate::identity::Identity;
use crate::peer::Peer;
use packet_engine::flow::udp_destination;
use packet_engine::packet::Header;
use packet_engine::table::prefixes::DualPrefixes;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use types::wireguard::PublicKey;

/// The peers of a device.
#[derive(Clone, Default)]
pub(crate) struct Peers {
    slots: Vec<Option<Arc<Peer>>>,
    by_key: HashMap<PublicKey, u32>,
}

impl Peers {
    pub(crate) fn free(&self) -> u32 {
        let free = if self.by_key.len() < self.slots.len() {
            self.slots.iter().position(Option::is_none)
        } else {
            None
        };
        u32::try_from(free.unwrap_or(self.slots.len())).unwrap_or(u32::MAX)
    }

    pub(crate) fn insert(&mut self, peer: &Arc<Peer>) {
        let at = peer.slot as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        if let Some(place) = self.slots.get_mut(at) {
            *place = Some(Arc::clone(peer));
            self.by_key.insert(peer.key, peer.slot);
        }
    }

    pub(crate) fn remove(&mut self, key: &PublicKey) -> Option<Arc<Peer>> {
        let slot = self.by_key.remove(key)?;
        self.slots.get_mut(slot as usize)?.take()
    }

    pub(crate) fn get(&self, key: &PublicKey) -> Option<&Arc<Peer>> {
        self.at(*self.by_key.get(key)?)
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<&Arc<Peer>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.slots.iter().flatten()
    }
}

/// Configured endpoints of the peers. A UDP packet to one of them is a datagram of this tunnel.
#[derive(Default)]
pub(crate) struct PeerEndpoints {
    /// Sorted. They are compared first, because packets of pods seldom have one of these few ports.
    ports: Vec<u16>,
    all: HashSet<SocketAddr>,
}

impl PeerEndpoints {
    pub(crate) fn build(all: impl Iterator<Item = SocketAddr>) -> Self {
        let all: HashSet<SocketAddr> = all.collect();
        let mut ports: Vec<u16> = all.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        Self { ports, all }
    }

    #[inline]
    fn has(&self, to: SocketAddr) -> bool {
        self.ports.binary_search(&to.port()).is_ok() && self.all.contains(&to)
    }
}

/// The configuration between two changes.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) identity: Option<Arc<Identity>>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) routes: Arc<DualPrefixes>,
    pub(crate) ends: Arc<PeerEndpoints>,
    pub(crate) mtu: u16,
}

impl Snapshot {
    #[inline]
    pub(crate) fn peer(&self, slot: u32) -> Option<&Peer> {
        self.peers.at(slot).map(|peer| &**peer)
    }

    /// The peer to which an inner address belongs.
    #[inline]
    pub(crate) fn slot_of(&self, ip: IpAddr) -> Option<u32> {
        self.routes.find_peer_index(ip)
    }

    /// Whether a packet is itself a datagram to a peer.
    #[inline]
    pub(crate) fn is_nested(&self, header: &Header, packet: &[u8]) -> bool {
        udp_destination(packet, header).is_some_and(|to| self.ends.has(to))
    }
}
