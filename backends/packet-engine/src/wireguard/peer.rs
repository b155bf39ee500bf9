//! A peer as the threads share it, and as it is shown.

use super::keypair::Keypair;
use super::link::Link;
use super::traffic::Traffic;
use crate::endpoint::Endpoint;
use arc_swap::{ArcSwapOption, Guard};
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use types::wireguard::{PublicKey, Secret};

/// A peer. Packets need no lock; handshakes and timers have one.
pub(super) struct Peer {
    pub(super) key: PublicKey,
    /// Its place among the peers.
    pub(super) slot: u32,
    pub(super) traffic: Traffic,
    /// Where its datagrams go, and from which address of this host: the one that the peer used last.
    endpoint: ArcSwapOption<Endpoint>,
    /// The session that packets are sealed in.
    sending: ArcSwapOption<Keypair>,
    /// Whether it was removed. Nothing is sealed or opened from then on, even by a thread that still sees it.
    removed: AtomicBool,
    link: Mutex<Link>,
}

impl Peer {
    pub(super) fn new(key: PublicKey, slot: u32, endpoint: Option<Endpoint>, link: Link) -> Self {
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

    /// Its handshakes and timers. A thread that panicked leaves nothing half done that matters: the worst is a session that has to be made anew.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.endpoint.load().as_deref().copied()
    }

    pub(super) fn set_endpoint(&self, endpoint: Endpoint) {
        if self.endpoint() != Some(endpoint) {
            self.endpoint.store(Some(Arc::new(endpoint)));
        }
    }

    /// Sends from whichever address the route names, until the peer uses one again.
    pub(super) fn forget_source(&self) {
        if let Some(endpoint) = self.endpoint().filter(|endpoint| endpoint.source.is_some()) {
            self.set_endpoint(Endpoint {
                source: None,
                ..endpoint
            });
        }
    }

    #[inline]
    pub(super) fn sending(&self) -> Guard<Option<Arc<Keypair>>> {
        self.sending.load()
    }

    pub(super) fn send_in(&self, keypair: Option<Arc<Keypair>>) {
        self.sending.store(keypair);
    }

    #[inline]
    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
        self.send_in(None);
    }
}

/// What is configured of a peer, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Where its datagrams go: configured, or learned from its last authenticated packet.
    pub endpoint: Option<SocketAddr>,
    /// The preshared key of its next handshake.
    pub preshared: Option<Secret>,
    /// Seconds between keepalives; zero for none.
    pub keepalive: u16,
    /// Its allowed IPs, sorted.
    pub allowed: Vec<IpNet>,
}

/// A peer and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its public key.
    pub key: PublicKey,
    /// Its configuration, with the endpoint that it roamed to.
    pub state: PeerState,
    /// When a handshake with it was completed last.
    pub handshake: Option<SystemTime>,
    /// The bytes sent to it, all headers of WireGuard included.
    pub sent: u64,
    /// The bytes received from it, likewise.
    pub received: u64,
}
