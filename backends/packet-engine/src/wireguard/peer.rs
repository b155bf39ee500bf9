//! A peer as the threads share it, and as it is shown.

use super::link::Link;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use types::wireguard::{PublicKey, Secret};

/// A peer. Whoever moves its packets holds its lock for a run of them.
pub(super) struct Peer {
    pub(super) key: PublicKey,
    /// Its place among the peers, which the indices of its sessions carry.
    pub(super) slot: u32,
    link: Mutex<Link>,
}

impl Peer {
    pub(super) fn new(key: PublicKey, slot: u32, link: Link) -> Self {
        Self {
            key,
            slot,
            link: Mutex::new(link),
        }
    }

    /// The state of the peer. A thread that panicked leaves nothing half done that matters: the worst is a session that has to be made anew.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
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
