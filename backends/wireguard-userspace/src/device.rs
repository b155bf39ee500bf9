//! WireGuard device. Each change of its configuration is published to the packet threads while packets flow.

use crate::handshakes::pending::Pending;
use crate::identity::Identity;
use crate::keypair::{Indices, Keypair};
use crate::link::Link;
use crate::peer::{Peer, PeerState, PeerStatus};
use crate::snapshot::{PeerEndpoints, Snapshot};
use crate::traffic::Clock;
use arc_swap::{ArcSwap, Guard};
use ipnet::IpNet;
use packet_engine::counters::Counters;
use packet_engine::drop_error::DropError;
use packet_engine::engine::Engine;
use packet_engine::socket::endpoint::Endpoint;
use packet_engine::table::prefixes::DualPrefixes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use thiserror::Error;
use types::Coded;
use types::wireguard::{PublicKey, Secret};

/// In bytes: all packets that wait for sessions. Only the first one of each peer may exceed this limit. It
/// bounds the memory of a node whose peers are all down.
const PARKED: usize = 16 << 20;

/// Sends a datagram and counts a failure, in which case it is false.
pub(crate) type Send<'s> = &'s mut dyn FnMut(Endpoint, &[u8]) -> bool;

pub struct Device {
    published: ArcSwap<Snapshot>,
    control: Mutex<Control>,
    pub(crate) pending: Pending,
    pub(crate) counters: Arc<Counters>,
    pub(crate) indices: Indices,
    pub(crate) clock: Clock,
    parked: AtomicUsize,
}

#[derive(Default)]
struct Control {
    private: Option<Secret>,
    allowed: BTreeMap<IpNet, PublicKey>,
    /// As configured, even if peers have roamed.
    endpoints: BTreeMap<PublicKey, SocketAddr>,
}

impl Device {
    /// Without a private key and peers. The engine encrypts all its packets.
    #[must_use]
    pub fn encrypting(engine: &mut Engine) -> Arc<Self> {
        let device = Arc::new(Self::new(engine.counters().clone()));
        engine.encrypt_with(device.clone());
        device
    }

    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        let snapshot = Snapshot {
            identity: None,
            peers: Arc::default(),
            routes: Arc::new(DualPrefixes::build([])),
            ends: Arc::default(),
            mtu: u16::MAX,
        };
        Self {
            published: ArcSwap::from_pointee(snapshot),
            control: Mutex::default(),
            pending: Pending::default(),
            counters,
            indices: Indices::default(),
            clock: Clock::new(Instant::now()),
            parked: AtomicUsize::new(0),
        }
    }

    /// Dropping the [`Change`] publishes it as a whole.
    pub fn change(&self) -> Change<'_> {
        let control = self.control.lock();
        let next = Snapshot::clone(&self.published.load());
        Change {
            device: self,
            control,
            next,
            routes: false,
            ends: false,
            dirty: false,
            rekeyed: false,
            added: Vec::new(),
            removed: Vec::new(),
            now: Instant::now(),
        }
    }

    /// `None` without a private key.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.published.load().identity.as_ref().map(|identity| PublicKey(*identity.keys.public()))
    }

    /// Sorted by key.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let control = self.control.lock();
        let snapshot = self.published.load();
        let mut allowed: BTreeMap<PublicKey, Vec<IpNet>> = BTreeMap::new();
        control.allowed.iter().for_each(|(net, key)| allowed.entry(*key).or_default().push(*net));
        let status = |peer: &Arc<Peer>| {
            let link = peer.lock();
            let state = PeerState {
                endpoint: peer.endpoint().map(|endpoint| endpoint.to),
                preshared: link.preshared.clone(),
                keepalive: link.keepalive,
                allowed: allowed.remove(&peer.key).unwrap_or_default(),
            };
            PeerStatus {
                key: peer.key,
                state,
                handshake: link.handshake,
                sent: peer.traffic.sent.load(Ordering::Relaxed),
                received: peer.traffic.received.load(Ordering::Relaxed),
            }
        };
        let mut peers: Vec<PeerStatus> = snapshot.peers.iter().map(status).collect();
        peers.sort_unstable_by_key(|peer| peer.key);
        peers
    }

    /// The last published configuration.
    #[inline]
    pub(crate) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.published.load()
    }

    /// Schedules a peer's timers for the time `at` or earlier.
    #[inline]
    pub(crate) fn visit_by(&self, peer: &Peer, at: Instant, now: Instant) {
        if let Some(due) = peer.traffic.enter(&self.clock, at, now) {
            self.pending.schedule(due, peer.slot);
        }
    }

    /// Requests a new session with a peer, even if one exists.
    pub(crate) fn want_session(&self, peer: &Peer, now: Instant) {
        if !peer.traffic.wants_session.swap(true, Ordering::Relaxed) {
            self.visit_by(peer, now, now);
        }
    }

    /// Ends sessions: threads no longer seal or open packets in them.
    pub(crate) fn end(&self, over: impl IntoIterator<Item = Arc<Keypair>>) {
        for keypair in over {
            keypair.end();
            self.indices.set(keypair.session.index(), None);
        }
    }

    /// Frees the index of an initiation whose response the node no longer accepts.
    pub(crate) fn free(&self, index: Option<u32>) {
        if let Some(index) = index {
            self.indices.set(index, None);
        }
    }

    /// Queues a packet until its peer has a session. Returns how many packets were dropped at the limit of
    /// the peer or of the device.
    pub(crate) fn park(&self, peer: &Peer, plain: &[u8], now: Instant) -> usize {
        let mut link = peer.lock();
        if !link.repeats() {
            let at = link.again().map_or(now, |again| again.max(now));
            self.visit_by(peer, at, now);
        }
        let full = self.parked.fetch_add(plain.len(), Ordering::Relaxed) + plain.len() > PARKED;
        // The first packet is kept in any case. Without it, no session is requested, and packets for dead peers may use up the limit.
        if full && !link.parked.is_empty() {
            self.parked.fetch_sub(plain.len(), Ordering::Relaxed);
            return 1;
        }
        link.park(plain).map_or(0, |gone| {
            self.unparked(&gone);
            1
        })
    }

    /// Records that a waiting packet was sent or dropped.
    pub(crate) fn unparked(&self, packet: &[u8]) {
        self.parked.fetch_sub(packet.len(), Ordering::Relaxed);
    }

    /// Drops the packets that wait for a session with a peer.
    pub(crate) fn give_up(&self, link: &mut Link) {
        let parked = std::mem::take(&mut link.parked);
        parked.iter().for_each(|packet| self.unparked(packet));
        self.counters.sent.count_dropped_packets(DropError::NoSession, parked.len());
    }

    /// Handles the peer's first packet in a session that this node's response created. From then on threads
    /// seal in this session, and the handshake thread sends the waiting packets.
    #[cold]
    pub(crate) fn confirmed(&self, peer: &Peer, keypair: &Arc<Keypair>, now: Instant) {
        let mut link = peer.lock();
        // Another thread may have been faster.
        let Some(over) = link.confirm(keypair) else {
            return;
        };
        peer.send_in(link.sending(now));
        peer.traffic.wants_session.store(false, Ordering::Relaxed);
        self.end(over);
        self.free(link.forget_initiation());
        packet_engine::counters::add_to_counter(&self.counters.handshakes.completed, 1);
        if !link.parked.is_empty() {
            self.visit_by(peer, now, now);
        }
    }
}

/// Error of configuring a WireGuard peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Coded)]
pub enum PeerError {
    #[error("the peer's public key is of small order: anyone could pretend to be the peer")]
    #[code("peer-key-weak")]
    WeakKey,
    #[error("the peer's public key is this device's own key")]
    #[code("peer-key-own")]
    OwnKey,
    #[error("no peer has the public key of this allowed IP")]
    #[code("peer-unknown")]
    NoPeer,
}

pub struct Change<'d> {
    device: &'d Device,
    control: MutexGuard<'d, Control>,
    next: Snapshot,
    routes: bool,
    ends: bool,
    dirty: bool,
    rekeyed: bool,
    added: Vec<u32>,
    removed: Vec<Arc<Peer>>,
    now: Instant,
}

impl Change<'_> {
    /// Threads seal no more packets in sessions under the former key, but still open those in flight.
    /// Handshakes with the new key begin at once.
    pub fn set_private_key(&mut self, private: Secret) {
        self.device.counters.handshakes.happen.store(true, Ordering::Relaxed);
        if self.control.private.as_ref() == Some(&private) {
            return;
        }
        self.remove_peer(&private.public());
        self.next.identity = Some(Arc::new(Identity::new(&private)));
        self.control.private = Some(private);
        self.rekeyed = true;
        self.dirty = true;
    }

    /// In bytes; inner packets must not exceed it.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.dirty |= self.next.mtu != mtu;
        self.next.mtu = mtu;
    }

    /// Adds or changes a peer. `endpoint`: `None` keeps the present one. `keepalive` is in seconds; zero
    /// disables keepalives. A session continues: a new preshared key applies from the next handshake on. A
    /// new peer gets a handshake at once.
    ///
    /// Fails if no peer can have this key, because it is of small order or the device's own.
    pub fn set_peer(
        &mut self,
        key: PublicKey,
        endpoint: Option<SocketAddr>,
        preshared: Option<Secret>,
        keepalive: u16,
    ) -> Result<(), PeerError> {
        let Some(peer) = self.next.peers.get(&key).cloned() else {
            return self.add_peer(key, endpoint, preshared, keepalive);
        };
        self.set_end(key, endpoint);
        if let Some(to) =
            endpoint.filter(|to| peer.endpoint().is_none_or(|present| present.to != *to))
        {
            peer.set_endpoint(to.into());
        }
        let mut link = peer.lock();
        if link.preshared != preshared {
            link.preshared = preshared;
            self.device.free(link.renew());
        }
        if link.keepalive != keepalive {
            link.keepalive = keepalive;
            link.kept = None;
            self.device.visit_by(&peer, self.now, self.now);
        }
        Ok(())
    }

    fn add_peer(
        &mut self,
        key: PublicKey,
        endpoint: Option<SocketAddr>,
        preshared: Option<Secret>,
        keepalive: u16,
    ) -> Result<(), PeerError> {
        if !key.is_usable() {
            return Err(PeerError::WeakKey);
        }
        if self.next.identity.as_ref().is_some_and(|identity| *identity.keys.public() == key.0) {
            return Err(PeerError::OwnKey);
        }
        let link = Link::new(self.next.identity.clone(), preshared, keepalive);
        let endpoint_of = endpoint.map(Endpoint::from);
        let peer = Arc::new(Peer::new(key, self.next.peers.free(), endpoint_of, link));
        Arc::make_mut(&mut self.next.peers).insert(&peer);
        self.added.push(peer.slot);
        self.set_end(key, endpoint);
        self.dirty = true;
        Ok(())
    }

    fn set_end(&mut self, key: PublicKey, endpoint: Option<SocketAddr>) {
        if let Some(to) = endpoint {
            self.ends |= self.control.endpoints.insert(key, to) != Some(to);
        }
    }

    /// Removes its allowed IPs too. False if there was no such peer.
    pub fn remove_peer(&mut self, key: &PublicKey) -> bool {
        if self.next.peers.get(key).is_none() {
            return false;
        }
        let Some(peer) = Arc::make_mut(&mut self.next.peers).remove(key) else {
            return false;
        };
        self.removed.push(peer);
        self.control.allowed.retain(|_, owner| owner != key);
        self.ends |= self.control.endpoints.remove(key).is_some();
        self.routes = true;
        self.dirty = true;
        true
    }

    /// Removes all peers with their allowed IPs. The private key stays.
    pub fn clear(&mut self) {
        self.removed.extend(self.next.peers.iter().cloned());
        self.next.peers = Arc::default();
        self.control.allowed.clear();
        self.control.endpoints.clear();
        (self.routes, self.ends) = (true, true);
    }

    /// Takes the allowed IP from the peer that had it. Fails if no peer has this key.
    pub fn set_allowed_ip(&mut self, net: IpNet, key: PublicKey) -> Result<(), PeerError> {
        if self.next.peers.get(&key).is_none() {
            return Err(PeerError::NoPeer);
        }
        self.routes |= self.control.allowed.insert(net.trunc(), key) != Some(key);
        Ok(())
    }

    /// False if the peer did not have the allowed IP.
    pub fn remove_allowed_ip(&mut self, net: IpNet, key: &PublicKey) -> bool {
        let had = self.control.allowed.get(&net.trunc()) == Some(key);
        if had {
            self.control.allowed.remove(&net.trunc());
            self.routes = true;
        }
        had
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.routes {
            let slot =
                |(net, key): (&IpNet, &PublicKey)| Some((*net, self.next.peers.get(key)?.slot));
            self.next.routes =
                Arc::new(DualPrefixes::build(self.control.allowed.iter().filter_map(slot)));
        }
        if self.ends {
            self.next.ends =
                Arc::new(PeerEndpoints::build(self.control.endpoints.values().copied()));
        }
        if self.routes || self.ends || self.dirty {
            self.device.published.store(Arc::new(self.next.clone()));
        }
        // Schedule handshake initiations only after the publication, because the handshake thread has to find the peers in the snapshot.
        if self.rekeyed {
            for peer in self.next.peers.iter() {
                let (over, index) = peer.lock().rekey(self.next.identity.clone());
                peer.send_in(None);
                self.device.end(over);
                self.device.free(index);
                self.device.pending.schedule_initiation(peer.slot);
            }
        } else {
            self.added.iter().for_each(|slot| self.device.pending.schedule_initiation(*slot));
        }
        // Done only after publishing, so that no packet is routed to a removed peer whose allowed IPs already belong to another. A thread with the
        // former snapshot is stopped by the peer's lock.
        for peer in &self.removed {
            peer.remove();
            let mut link = peer.lock();
            let (over, index) = link.remove();
            self.device.end(over);
            self.device.free(index);
            self.device.give_up(&mut link);
        }
    }
}
