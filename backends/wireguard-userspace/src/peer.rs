//! A peer that the threads share, and the status of a peer.

use crate::keypair::Keypair;
use crate::link::Link;
use crate::traffic::Traffic;
use arc_swap::{ArcSwapOption, Guard};
use ipnet::IpNet;
use packet_engine::socket::endpoint::Endpoint;
use parking_lot::{Mutex, MutexGuard};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use types::wireguard::{PublicKey, Secret};

/// The packet path takes no lock; handshakes and timers share one.
pub(crate) struct Peer {
    pub(crate) key: PublicKey,
    /// The index in the list of peers.
    pub(crate) slot: u32,
    pub(crate) traffic: Traffic,
    /// With the address of this host to which the peer last sent an authentic datagram.
    endpoint: ArcSwapOption<Endpoint>,
    /// The session in which threads seal packets.
    sending: ArcSwapOption<Keypair>,
    /// After the removal, threads neither seal nor open packets for the peer, even with an old snapshot.
    removed: AtomicBool,
    link: Mutex<Link>,
}

impl Peer {
    pub(crate) fn new(key: PublicKey, slot: u32, endpoint: Option<Endpoint>, link: Link) -> Self {
        Self {
            key,
            slot,
            traffic: Traffic::default(),
            endpoint: ArcSwapOption::from_pointee(endpoint),
            sending: ArcSwapOption::empty(),
            removed: AtomicBool::new(false),
            link: Mutex::new(link),
        }
    }

    /// After a panic under the lock, the node at worst has to establish a new session.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock()
    }

    #[inline]
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        self.endpoint.load().as_deref().copied()
    }

    pub(crate) fn set_endpoint(&self, endpoint: Endpoint) {
        if self.endpoint() != Some(endpoint) {
            self.endpoint.store(Some(Arc::new(endpoint)));
        }
    }

    /// Lets the route select the source address until the peer sends an authentic datagram again.
    pub(crate) fn forget_source(&self) {
        if let Some(endpoint) = self.endpoint().filter(|endpoint| endpoint.source.is_some()) {
            self.set_endpoint(Endpoint { source: None, ..endpoint });
        }
    }

    #[inline]
    pub(crate) fn sending(&self) -> Guard<Option<Arc<Keypair>>> {
        self.sending.load()
    }

    pub(crate) fn send_in(&self, keypair: Option<Arc<Keypair>>) {
        self.sending.store(keypair);
    }

    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
        self.send_in(None);
    }
}

/// What is configured, for comparison with what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Configured, or learned from the last authenticated packet.
    pub endpoint: Option<SocketAddr>,
    /// For the next handshake.
    pub preshared: Option<Secret>,
    /// Seconds between keepalives; zero for none.
    pub keepalive: u16,
    /// Sorted.
    pub allowed: Vec<IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub key: PublicKey,
    /// With the endpoint to which the peer roamed.
    pub state: PeerState,
    /// Time of the last completed handshake.
    pub handshake: Option<SystemTime>,
    /// Bytes sent, with all headers of WireGuard.
    pub sent: u64,
    /// Bytes received, with all headers of WireGuard.
    pub received: u64,
}
