//! Tests with devices that exchange datagrams in memory.

use super::message::{OVERHEAD, padded};
use super::*;
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::error::PeerError;
use crate::packet::Header;
use crate::reason::Reason;
use ipnet::IpNet;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

mod flood;
mod laws;
mod timers;
mod vm;

const MTU: u16 = 1420;

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an IPv4 or IPv6 packet with a UDP header and a payload.
fn packet(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let builder = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            etherparse::PacketBuilder::ipv4(from.octets(), to.octets(), 64)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            etherparse::PacketBuilder::ipv6(from.octets(), to.octets(), 64)
        }
        _ => panic!("two families"),
    };
    let mut packet = Vec::new();
    builder.udp(1000, 2000).write(&mut packet, payload).unwrap();
    packet
}

fn elsewhere() -> SocketAddr {
    SocketAddr::new(ip("192.0.2.66"), 1)
}

/// A node: a device, its address, and the packets and datagrams that the node delivered or sent.
struct Node {
    device: Device,
    worker: Worker,
    address: SocketAddr,
    key: PublicKey,
    /// Packets that the node delivered.
    delivered: Vec<Vec<u8>>,
    /// Datagrams that the node sent.
    sent: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Offset of the node's clock from the machine's clock, or from `stopped` if the test stopped the node's clock.
    ahead: Duration,
    /// Time at which the test stopped the node's clock, not including `ahead`.
    stopped: Option<Instant>,
}

impl Node {
    fn new(number: u8) -> Self {
        let counters = Arc::new(Counters::default());
        let device = Device::new(counters);
        device.change().set_mtu(MTU);
        let mut node = Self {
            device,
            worker: Worker::default(),
            address: SocketAddr::new(Ipv4Addr::new(192, 168, 56, number).into(), 51820),
            key: PublicKey([0; 32]),
            delivered: Vec::new(),
            sent: VecDeque::new(),
            ahead: Duration::ZERO,
            stopped: None,
        };
        node.rekey(number);
        node
    }

    fn rekey(&mut self, seed: u8) {
        let private = Secret::new([seed; 32]);
        self.key = private.public();
        self.device.change().set_private_key(private);
        assert_eq!(self.device.public_key(), Some(self.key));
    }

    fn add(&self, peer: &Node, allowed: &[&str]) {
        let mut change = self.device.change();
        change
            .set_peer(peer.key, Some(peer.address), None, 0)
            .unwrap();
        allowed
            .iter()
            .for_each(|allowed| change.set_allowed_ip(net(allowed), peer.key).unwrap());
    }

    fn now(&self) -> Instant {
        self.stopped.unwrap_or_else(Instant::now) + self.ahead
    }

    /// Runs rounds of the handshake thread's work until no work is due.
    fn work(&mut self) {
        loop {
            let now = self.now();
            let Self {
                device,
                worker,
                sent,
                ..
            } = self;
            let next = device.work_at(now, worker, &mut |to, datagram| {
                sent.push_back((to.to, datagram.to_vec()));
                Ok(())
            });
            if next.is_none_or(|next| next > self.now()) {
                return;
            }
        }
    }

    /// Adds a peer with a preshared key.
    fn shares(&self, peer: &Node, allowed: &str, preshared: u8) {
        let mut change = self.device.change();
        change
            .set_peer(
                peer.key,
                Some(peer.address),
                Some(Secret::new([preshared; 32])),
                0,
            )
            .unwrap();
        change.set_allowed_ip(net(allowed), peer.key).unwrap();
    }

    /// Sends a packet of a pod. Returns the sealed datagram and its destination, or `None` if the packet waits for a session.
    fn pod_sends(&self, packet: &[u8]) -> Result<Option<(SocketAddr, Vec<u8>)>, Reason> {
        let snapshot = self.device.snapshot();
        let mut sealer = Sealer::new(&self.device, &snapshot, self.now());
        let slot = sealer
            .route(&Header::parse(packet).unwrap(), packet.len())
            .map_err(|(_, reason)| reason)?;
        let mut plain = packet.to_vec();
        plain.resize(sealer.padded(packet.len()), 0);
        match sealer.hold(slot)? {
            SendState::Ready(to) => {
                let mut out = vec![0; Sealer::room(plain.len())];
                let length = sealer.seal(&plain, &mut out).unwrap();
                assert_eq!(length, plain.len() + OVERHEAD);
                out.truncate(length);
                Ok(Some((to.to, out)))
            }
            SendState::AwaitingSession => {
                assert_eq!(sealer.park(&plain), 0);
                Ok(None)
            }
        }
    }

    fn receives(&mut self, from: impl Into<Endpoint>, datagram: &[u8]) -> Result<(), Reason> {
        let snapshot = self.device.snapshot();
        let mut opener = Opener::new(&self.device, &snapshot, self.now());
        let mut datagram = datagram.to_vec();
        if let Some(header) = opener.open(&mut datagram, from.into())? {
            self.delivered.push(datagram[..header.total_len].to_vec());
        }
        Ok(())
    }

    fn sees(&self, peer: &PublicKey) -> PeerStatus {
        self.device
            .peers()
            .into_iter()
            .find(|status| status.key == *peer)
            .unwrap()
    }
}

/// Delivers the datagrams of the nodes until no datagram is in flight.
fn settle(nodes: &mut [&mut Node]) {
    for _ in 0..50 {
        nodes.iter_mut().for_each(|node| node.work());
        let mut moved = false;
        for from in 0..nodes.len() {
            let address = nodes[from].address;
            while let Some((to, datagram)) = nodes[from].sent.pop_front() {
                moved = true;
                if let Some(node) = nodes.iter_mut().find(|node| node.address == to) {
                    let _ = node.receives(address, &datagram);
                }
            }
        }
        if !moved {
            return;
        }
    }
    panic!("they never end");
}

/// Waits until a node accepts the next initiation of a peer. A node responds to at most 50 initiations per
/// second of one peer, and refuses further initiations.
fn pause() {
    std::thread::sleep(Duration::from_millis(30));
}

/// Returns two nodes, each with subnets, and a session between the nodes.
fn pair() -> (Node, Node) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24", "fd00:2::/64"]);
    b.add(&a, &["10.5.1.0/24", "fd00:1::/64"]);
    settle(&mut [&mut a, &mut b]);
    (a, b)
}

/// Sends a packet that the node must seal immediately, and delivers the packet.
fn passes(from: &mut Node, to: &mut Node, packet: &[u8]) {
    let (way, datagram) = from.pod_sends(packet).unwrap().unwrap();
    assert_eq!(way, to.address);
    let before = to.delivered.len();
    to.receives(from.address, &datagram).unwrap();
    assert_eq!(to.delivered[before..], [packet.to_vec()]);
}

#[test]
fn packets_pass_both_ways() {
    let (mut a, mut b) = pair();
    for (here, there) in [("10.5.1.9", "10.5.2.9"), ("fd00:1::9", "fd00:2::9")] {
        for length in [0, 1, 15, 16, 17, 1000] {
            passes(
                &mut a,
                &mut b,
                &packet(ip(here), ip(there), &vec![7; length]),
            );
            passes(
                &mut b,
                &mut a,
                &packet(ip(there), ip(here), &vec![8; length]),
            );
        }
    }
    let seen = a.sees(&b.key);
    assert!(
        seen.handshake.is_some() && seen.sent > 3000 && seen.received > 3000,
        "{seen:?}"
    );
    assert_eq!(seen.state.allowed, [net("10.5.2.0/24"), net("fd00:2::/64")]);
    let of = |node: &Node| node.device.counters.handshakes.completed.load(Relaxed);
    assert!(
        of(&a) > 0 && of(&b) > 0,
        "each counts a handshake when it is complete"
    );
}

#[test]
fn padding_hides_the_length_within_the_mtu() {
    assert_eq!(
        [0, 1, 16, 1405, 1408, 1409, 1420].map(|length| padded(length, MTU)),
        [0, 16, 16, 1408, 1408, 1420, 1420]
    );
    assert_eq!(padded(1430, MTU), 1430, "nothing is cut");
}

#[test]
fn packets_wait_for_the_first_session() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24"]);
    b.add(&a, &["10.5.1.0/24"]);
    let all: Vec<_> = (0..5u8)
        .map(|n| packet(ip("10.5.1.9"), ip("10.5.2.9"), &[n; 30]))
        .collect();
    for packet in &all {
        assert_eq!(a.pod_sends(packet), Ok(None));
    }
    settle(&mut [&mut a, &mut b]);
    assert_eq!(b.delivered, all, "in order");
    assert_eq!(
        (
            count(&a.device.counters.sent.packets),
            count(&a.device.counters.sent.bytes)
        ),
        (5, 5 * 58)
    );
}

/// A restarted node has no session, and its peer does not know of the restart. The restarted node initiates a
/// handshake itself, so that packets to the node are lost only for a short time.
#[test]
fn a_node_that_restarted_begins() {
    let (mut a, old) = pair();
    drop(old);
    pause();
    let mut b = Node::new(2);
    b.add(&a, &["10.5.1.0/24"]);
    let (_, lost) = a
        .pod_sends(&packet(ip("10.5.1.9"), ip("10.5.2.9"), b"lost"))
        .unwrap()
        .unwrap();
    assert_eq!(b.receives(a.address, &lost), Err(Reason::NoSession));
    settle(&mut [&mut a, &mut b]);
    passes(
        &mut a,
        &mut b,
        &packet(ip("10.5.1.9"), ip("10.5.2.9"), b"found"),
    );
}

#[test]
fn the_longest_allowed_ip_wins_and_moves_at_once() {
    let (mut a, mut b) = pair();
    let mut c = Node::new(3);
    a.add(&c, &["10.5.2.128/25"]);
    c.add(&a, &["10.5.1.0/24"]);
    settle(&mut [&mut a, &mut b, &mut c]);
    let (high, low) = (
        packet(ip("10.5.1.9"), ip("10.5.2.200"), b"high"),
        packet(ip("10.5.1.9"), ip("10.5.2.9"), b"low"),
    );
    passes(&mut a, &mut c, &high);
    passes(&mut a, &mut b, &low);
    a.device
        .change()
        .set_allowed_ip(net("10.5.2.0/24"), c.key)
        .unwrap();
    passes(&mut a, &mut c, &low);
    // Until a moment ago, B owned this subnet.
    let (_, forged) = b
        .pod_sends(&packet(ip("10.5.2.9"), ip("10.5.1.9"), b"mine"))
        .unwrap()
        .unwrap();
    assert_eq!(a.receives(b.address, &forged), Err(Reason::Spoofed));
    assert!(
        a.device
            .change()
            .remove_allowed_ip(net("10.5.2.0/24"), &c.key)
    );
    assert!(
        !a.device
            .change()
            .remove_allowed_ip(net("10.5.2.128/25"), &b.key),
        "it is C's"
    );
    assert_eq!(a.pod_sends(&low), Err(Reason::NoRoute));
    passes(&mut a, &mut c, &high);
}

#[test]
fn waiting_packet_is_not_sent_to_a_peer_without_its_subnet() {
    let (mut a, mut b, mut c) = (Node::new(1), Node::new(2), Node::new(3));
    a.add(&b, &["10.5.2.0/24"]);
    b.add(&a, &["10.5.1.0/24"]);
    assert_eq!(
        a.pod_sends(&packet(ip("10.5.1.9"), ip("10.5.2.9"), b"x")),
        Ok(None)
    );
    a.add(&c, &["10.5.2.0/24"]);
    settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(
        (
            b.delivered.len(),
            a.device.counters.sent.drops(Reason::NoRoute)
        ),
        (0, 1)
    );
}

#[test]
fn endpoint_follows_authentic_packets() {
    let (mut a, mut b) = pair();
    b.address = "[fd00::7]:4242".parse().unwrap();
    let (_, datagram) = b
        .pod_sends(&packet(ip("10.5.2.9"), ip("10.5.1.9"), b"moved"))
        .unwrap()
        .unwrap();
    let mut forged = datagram.clone();
    forged[40] ^= 1;
    assert_eq!(a.receives(elsewhere(), &forged), Err(Reason::BadTag));
    assert_ne!(a.sees(&b.key).state.endpoint, Some(b.address));
    a.receives(b.address, &datagram).unwrap();
    assert_eq!(a.sees(&b.key).state.endpoint, Some(b.address));
    // A copy from another address does not move the endpoint.
    assert_eq!(a.receives(elsewhere(), &datagram), Err(Reason::Replayed));
    assert_eq!(a.sees(&b.key).state.endpoint, Some(b.address));
    passes(
        &mut a,
        &mut b,
        &packet(ip("10.5.1.9"), ip("10.5.2.9"), b"found"),
    );
    // Without a configured endpoint, the learned one stays. A configured endpoint takes precedence.
    a.device.change().set_peer(b.key, None, None, 0).unwrap();
    assert_eq!(a.sees(&b.key).state.endpoint, Some(b.address));
    a.device
        .change()
        .set_peer(b.key, Some("192.0.2.1:51820".parse().unwrap()), None, 0)
        .unwrap();
    assert_eq!(
        a.sees(&b.key).state.endpoint,
        Some("192.0.2.1:51820".parse().unwrap())
    );
}

/// Sends all messages that are due at a node. Returns each datagram with its destination endpoint.
fn sends(node: &mut Node) -> Vec<(Endpoint, Vec<u8>)> {
    let mut all = Vec::new();
    let now = node.now();
    node.device
        .work_at(now, &mut node.worker, &mut |to, datagram| {
            all.push((to, datagram.to_vec()));
            Ok(())
        });
    all
}

/// Returns the source address of `a` for packets to the peer.
fn source(a: &Node) -> Option<IpAddr> {
    let snapshot = a.device.snapshot();
    let slot = Sealer::new(&a.device, &snapshot, a.now()).route(
        &Header::parse(&packet(ip("10.5.1.9"), ip("10.5.2.9"), b"")).unwrap(),
        28,
    );
    match Sealer::new(&a.device, &snapshot, a.now())
        .hold(slot.unwrap())
        .unwrap()
    {
        SendState::Ready(to) => to.source,
        SendState::AwaitingSession => panic!("no session"),
    }
}

/// Returns the address of `a` to which `b` sends datagrams.
fn known_source() -> Option<IpAddr> {
    Some(ip("192.168.56.201"))
}

/// Returns two nodes with a session that `b` initiated, at the known address of `a`.
fn session_at_the_known_address() -> (Node, Node) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24"]);
    b.add(&a, &["10.5.1.0/24"]);
    let from_b = Endpoint {
        to: b.address,
        source: known_source(),
    };
    // The response leaves from the address at which the initiation arrived.
    let initiation = sends(&mut b).remove(0).1;
    sends(&mut a);
    a.receives(from_b, &initiation).unwrap();
    let (to, response) = sends(&mut a).remove(0);
    assert_eq!(to, from_b);
    // Packets also leave from it, once the session is confirmed.
    b.receives(a.address, &response).unwrap();
    let (_, confirmation) = sends(&mut b).remove(0);
    a.receives(from_b, &confirmation).unwrap();
    assert_eq!(source(&a), known_source());
    (a, b)
}

/// The node sends responses and packets from the address that the peer knows, whatever source address the route
/// selects. A NAT in front of the peer accepts packets only from the node address that the peer knows.
#[test]
fn answers_come_from_the_address_that_the_peer_uses() {
    let (a, b) = session_at_the_known_address();
    // Configuring the same endpoint again changes nothing.
    a.add(&b, &[]);
    assert_eq!(source(&a), known_source());
    a.device
        .change()
        .set_peer(b.key, Some("192.0.2.1:51820".parse().unwrap()), None, 0)
        .unwrap();
    assert_eq!(source(&a), None, "of another endpoint nothing is known");
}

#[test]
fn source_is_forgotten_and_learned_again() {
    let (mut a, b) = session_at_the_known_address();
    let from_b = Endpoint {
        to: b.address,
        source: known_source(),
    };
    let other = Endpoint {
        to: elsewhere(),
        source: known_source(),
    };
    a.device.forget_sources(&[other]);
    assert_eq!(source(&a), known_source());
    a.device.forget_sources(&[other, from_b]);
    assert_eq!(source(&a), None);
    let (_, datagram) = b
        .pod_sends(&packet(ip("10.5.2.9"), ip("10.5.1.9"), b"again"))
        .unwrap()
        .unwrap();
    a.receives(from_b, &datagram).unwrap();
    assert_eq!(source(&a), known_source());
}

/// A source address may still belong to this host although the uplink of this address has failed. The node stops
/// using a source address at which no response arrives.
#[test]
fn a_handshake_without_answer_is_repeated_from_the_address_of_the_route() {
    let (mut a, mut b) = session_at_the_known_address();
    let known = Endpoint {
        to: b.address,
        source: known_source(),
    };
    let initiation_to = |a: &mut Node, after: u64| {
        a.ahead = Duration::from_secs(after);
        let (to, message) = sends(a).remove(0);
        assert_eq!(message.len(), 148);
        (to, message)
    };
    a.ahead = Duration::from_secs(181);
    let there = packet(ip("10.5.1.9"), ip("10.5.2.9"), b"there");
    assert_eq!(a.pod_sends(&there), Ok(None));
    assert_eq!(initiation_to(&mut a, 181).0, known);
    let (to, message) = initiation_to(&mut a, 187);
    assert_eq!(to, Endpoint::from(b.address));
    // An authentic response sets the source again.
    b.ahead = a.ahead;
    b.receives(a.address, &message).unwrap();
    let (_, response) = sends(&mut b).remove(0);
    a.receives(known, &response).unwrap();
    sends(&mut a);
    assert_eq!(source(&a), known_source());
}

#[test]
fn an_initiation_that_is_repeated_moves_nothing_and_is_refused() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.add(&b, &[]);
    b.add(&a, &[]);
    a.work();
    let (_, initiation) = a.sent.pop_front().unwrap();
    b.receives(a.address, &initiation).unwrap();
    b.work();
    pause();
    b.receives(elsewhere(), &initiation).unwrap();
    b.work();
    assert_eq!(b.device.counters.received.drops(Reason::Replayed), 1);
    assert_eq!(b.sees(&a.key).state.endpoint, Some(a.address));
}

#[test]
fn new_key_is_used_at_once_and_packets_in_flight_open() {
    let (mut a, mut b) = pair();
    let (_, under_way) = b
        .pod_sends(&packet(ip("10.5.2.9"), ip("10.5.1.9"), b"under way"))
        .unwrap()
        .unwrap();
    let old = a.key;
    a.rekey(77);
    let answer = packet(ip("10.5.1.9"), ip("10.5.2.9"), b"answer");
    assert_eq!(
        a.pod_sends(&answer),
        Ok(None),
        "nothing is sealed under the former key"
    );
    settle(&mut [&mut a, &mut b]);
    a.receives(b.address, &under_way).unwrap();
    assert_eq!(a.delivered.len(), 1);
    pause();
    // B is reconfigured: the peer with the new key takes the subnet, and then the old peer is removed.
    b.add(&a, &["10.5.1.0/24"]);
    assert!(b.device.change().remove_peer(&old));
    settle(&mut [&mut a, &mut b]);
    assert_eq!(b.delivered, [answer]);
    passes(
        &mut a,
        &mut b,
        &packet(ip("10.5.1.9"), ip("10.5.2.9"), b"again"),
    );
    passes(
        &mut b,
        &mut a,
        &packet(ip("10.5.2.9"), ip("10.5.1.9"), b"back"),
    );
}

#[test]
fn a_new_preshared_key_leaves_the_session_and_counts_for_the_next() {
    let (mut a, mut b) = pair();
    let there = packet(ip("10.5.1.9"), ip("10.5.2.9"), b"there");
    let secret = || Some(Secret::new([5; 32]));
    a.device
        .change()
        .set_peer(b.key, None, secret(), 0)
        .unwrap();
    settle(&mut [&mut a, &mut b]);
    passes(&mut a, &mut b, &there);
    passes(
        &mut b,
        &mut a,
        &packet(ip("10.5.2.9"), ip("10.5.1.9"), b"back"),
    );
    // B restarts. Without the preshared key, there is no session; with it, there is one.
    for (preshared, works) in [(None, false), (secret(), true)] {
        b = Node::new(2);
        b.device
            .change()
            .set_peer(a.key, Some(a.address), preshared, 0)
            .unwrap();
        b.device
            .change()
            .set_allowed_ip(net("10.5.1.0/24"), a.key)
            .unwrap();
        pause();
        settle(&mut [&mut a, &mut b]);
        assert_eq!(
            b.device.counters.handshakes.completed.load(Relaxed) > 0,
            works
        );
        if works {
            passes(&mut a, &mut b, &there);
        }
    }
}

#[test]
fn removed_peer_is_gone_for_old_snapshots() {
    let (a, b) = pair();
    let (_, datagram) = b
        .pod_sends(&packet(ip("10.5.2.9"), ip("10.5.1.9"), b"late"))
        .unwrap()
        .unwrap();
    let device = &a.device;
    let before = device.snapshot();
    assert!(device.change().remove_peer(&b.key) && !device.change().remove_peer(&b.key));
    let there = packet(ip("10.5.1.9"), ip("10.5.2.9"), b"there");
    let mut sealer = Sealer::new(device, &before, Instant::now());
    let slot = sealer
        .route(&Header::parse(&there).unwrap(), there.len())
        .unwrap();
    assert_eq!(sealer.hold(slot), Err(Reason::NoRoute));
    sealer.release();
    let mut opener = Opener::new(device, &before, Instant::now());
    assert_eq!(
        opener.open(&mut datagram.clone(), b.address.into()),
        Err(Reason::NoSession)
    );
    drop(opener);
    assert_eq!(a.pod_sends(&there), Err(Reason::NoRoute));
    assert!(a.device.peers().is_empty());
}

#[test]
fn keys_that_no_peer_can_have_are_refused() {
    let a = Node::new(1);
    let mut change = a.device.change();
    assert_eq!(
        change.set_peer(PublicKey([0; 32]), None, None, 0),
        Err(PeerError::WeakKey)
    );
    assert_eq!(
        change.set_peer(a.key, None, None, 0),
        Err(PeerError::OwnKey)
    );
    assert_eq!(
        change.set_allowed_ip(net("10.5.2.0/24"), PublicKey([9; 32])),
        Err(PeerError::NoPeer)
    );
    drop(change);
    assert!(a.device.peers().is_empty());
}

#[test]
fn a_keepalive_is_sent_at_once_and_repeated() {
    let (mut a, mut b) = pair();
    let received = b.sees(&a.key).received;
    a.device.change().set_peer(b.key, None, None, 1).unwrap();
    settle(&mut [&mut a, &mut b]);
    let first = b.sees(&a.key).received;
    assert_eq!(first, received + OVERHEAD as u64, "at once");
    let deadline = Instant::now() + Duration::from_secs(20);
    while b.sees(&a.key).received == first && Instant::now() < deadline {
        a.device
            .wait(a.device.pending.next().map(|next| next.min(deadline)));
        settle(&mut [&mut a, &mut b]);
    }
    assert_eq!(b.sees(&a.key).received, first + OVERHEAD as u64);
}

#[test]
fn sender_proves_its_address_under_load() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    b.add(&a, &[]);
    // Initiations that pass all cheap checks. A sender needs only our public key to make them.
    let mut valid = Vec::new();
    for n in 0..30u8 {
        a.rekey(100 + n);
        a.add(&b, &[]);
        a.work();
        valid.push(a.sent.pop_front().unwrap().1);
        a.device.change().remove_peer(&b.key);
        a.sent.clear();
    }
    // Load is the number of waiting initiations. 30 are processed at once and are no load.
    for (at_once, loads) in [(30, false), (300, true)] {
        for _ in 0..6 {
            for (port, initiation) in (1..).zip(valid.iter().cycle().take(at_once)) {
                assert_eq!(
                    b.receives(SocketAddr::new(elsewhere().ip(), port), initiation),
                    Ok(())
                );
            }
            b.work();
        }
        assert_eq!(count(&b.device.counters.handshakes.cookies) > 0, loads);
    }
    let counters = &b.device.counters;
    let dropped = counters.received.drops(Reason::UnknownPeer)
        + counters.received.drops(Reason::HandshakeFlood);
    assert_eq!(dropped + count(&counters.handshakes.cookies), 6 * 330);
}

#[test]
fn peer_gets_in_with_a_cookie_under_load() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let mut stranger = Node::new(3);
    stranger.add(&b, &[]);
    stranger.work();
    let initiation = stranger.sent.pop_front().unwrap().1;
    a.add(&b, &["10.5.2.0/24"]);
    b.add(&a, &["10.5.1.0/24"]);
    // Only A initiates a handshake.
    b.work();
    b.sent.clear();
    b.stopped = Some(b.now());
    for seconds in [0, 6] {
        a.ahead = Duration::from_secs(seconds);
        a.work();
        for port in 1..300 {
            let from = SocketAddr::new(elsewhere().ip(), port);
            assert_eq!(b.receives(from, &initiation), Ok(()));
        }
        b.work();
        b.sent.clear();
        let (_, asked) = a.sent.pop_front().unwrap();
        assert_eq!(b.receives(a.address, &asked), Ok(()));
        b.work();
        let mut answers = b.sent.drain(..).filter(|(to, _)| *to == a.address);
        let (_, answer) = answers.next().unwrap();
        assert_eq!(a.receives(b.address, &answer), Ok(()));
        a.work();
        assert_eq!(
            (answer[0], count(&a.device.counters.handshakes.completed)),
            if seconds == 0 { (3, 0) } else { (2, 1) }
        );
    }
}

#[test]
fn waiting_packets_are_bounded() {
    let (mut a, b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24"]);
    let large = packet(ip("10.5.1.9"), ip("10.5.2.9"), &[0; 1300]);
    let snapshot = a.device.snapshot().clone();
    let mut sealer = Sealer::new(&a.device, &snapshot, Instant::now());
    let slot = sealer
        .route(&Header::parse(&large).unwrap(), large.len())
        .unwrap();
    assert_eq!(sealer.hold(slot), Ok(SendState::AwaitingSession));
    let dropped: usize = (0..200).map(|_| sealer.park(&large)).sum();
    assert_eq!(dropped, 72, "128 stay");
    drop(sealer);
    let mut left = |from: SocketAddr| {
        usize::from(a.receives(from, &[&1u32.to_le_bytes()[..], &[7; 144]].concat()) == Ok(()))
    };
    assert_eq!(
        (0..2000).map(|_| left(b.address)).sum::<usize>(),
        128,
        "of one sender"
    );
    let many =
        (0..20_000).map(|n| left(SocketAddr::new(Ipv4Addr::from(0x0a00_0000 + n).into(), 1)));
    assert_eq!(many.sum::<usize>(), 1024 - 128);
    a.device.change().remove_peer(&b.key);
    assert_eq!(a.device.counters.sent.drops(Reason::NoSession), 128);
}

/// The kernel's WireGuard silently drops datagrams of a session that is more than 180 seconds old.
#[test]
fn a_session_is_not_sent_in_beyond_its_time() {
    let (mut a, mut b) = pair();
    let there = packet(ip("10.5.1.9"), ip("10.5.2.9"), b"there");
    let back = packet(ip("10.5.2.9"), ip("10.5.1.9"), b"back");
    (a.ahead, b.ahead) = (Duration::from_secs(170), Duration::from_secs(170));
    assert!(a.pod_sends(&there).unwrap().is_some() && b.pod_sends(&back).unwrap().is_some());
    (a.ahead, b.ahead) = (Duration::from_secs(181), Duration::from_secs(181));
    assert_eq!(
        (a.pod_sends(&there), b.pod_sends(&back)),
        (Ok(None), Ok(None))
    );
    settle(&mut [&mut a, &mut b]);
    assert_eq!(
        (&a.delivered, &b.delivered),
        (&vec![back], &vec![there]),
        "each is sent in a new session"
    );
}

/// A response creates a session that the peer may never use. A peer with another preshared key cannot use the session.
#[test]
fn nothing_is_sent_in_a_session_that_the_peer_has_not_confirmed() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    b.add(&a, &["10.5.1.0/24"]);
    a.shares(&b, "10.5.2.0/24", 5);
    a.work();
    for round in 1..=9 {
        a.sent.clear();
        (a.ahead, b.ahead) = (
            Duration::from_secs(6 * round),
            Duration::from_secs(6 * round),
        );
        b.work();
        let (_, initiation) = b.sent.pop_front().unwrap();
        a.receives(b.address, &initiation).unwrap();
        a.work();
        assert!(
            a.sent.iter().any(|(_, answer)| answer.len() == 92),
            "it answers"
        );
        let there = packet(ip("10.5.1.9"), ip("10.5.2.9"), b"x");
        assert_eq!(a.pod_sends(&there), Ok(None));
    }
}

/// Both sides have packets for each other, but different preshared keys. Each side responds to the initiations of its
/// peer, but neither side can use a response.
#[test]
fn handshakes_with_two_preshared_keys_are_given_up() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.shares(&b, "10.5.2.0/24", 1);
    b.shares(&a, "10.5.1.0/24", 2);
    for second in 0..120 {
        a.ahead = Duration::from_secs(second);
        b.ahead = a.ahead;
        assert_eq!(
            a.pod_sends(&packet(ip("10.5.1.9"), ip("10.5.2.9"), b"x")),
            Ok(None)
        );
        assert_eq!(
            b.pod_sends(&packet(ip("10.5.2.9"), ip("10.5.1.9"), b"y")),
            Ok(None)
        );
        settle(&mut [&mut a, &mut b]);
    }
    for node in [&a, &b] {
        let handshakes = &node.device.counters.handshakes;
        assert!(
            (10..=25).contains(&count(&handshakes.initiated)),
            "{handshakes:?}"
        );
        assert!(count(&handshakes.answered) >= 10, "{handshakes:?}");
        assert_eq!(
            (count(&handshakes.failed), count(&handshakes.completed)),
            (1, 0)
        );
        let dropped = node.device.counters.sent.drops(Reason::NoSession);
        assert!(
            (88..=100).contains(&dropped),
            "{dropped} packets waited for a session in vain"
        );
    }
    // Once both have the same key, all packets are delivered that were not dropped by then.
    let lost = [&a, &b].map(|node| node.device.counters.sent.drops(Reason::NoSession) as usize);
    (a.ahead, b.ahead) = (Duration::from_secs(130), Duration::from_secs(130));
    b.device
        .change()
        .set_peer(a.key, None, Some(Secret::new([1; 32])), 0)
        .unwrap();
    assert_eq!(
        b.pod_sends(&packet(ip("10.5.2.9"), ip("10.5.1.9"), b"z")),
        Ok(None)
    );
    settle(&mut [&mut a, &mut b]);
    assert_eq!(
        [b.delivered.len(), a.delivered.len()],
        [120 - lost[0], 121 - lost[1]]
    );
}

/// After a node responds to its peer's initiation, the node no longer repeats its own initiation. While a packet waits, the node
/// still sends new initiations, and drops the packet after 90 seconds without a session.
#[test]
fn a_single_packet_is_tried_for_until_it_is_given_up() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.shares(&b, "10.5.2.0/24", 1);
    b.shares(&a, "10.5.1.0/24", 2);
    assert_eq!(
        a.pod_sends(&packet(ip("10.5.1.9"), ip("10.5.2.9"), b"x")),
        Ok(None)
    );
    let seen = |a: &Node| {
        let counters = &a.device.counters;
        (
            count(&counters.handshakes.initiated) > 1,
            count(&counters.handshakes.failed),
            counters.sent.drops(Reason::NoSession),
        )
    };
    for (second, wanted) in [
        (0, (false, 0, 0)),
        (4, (false, 0, 0)),
        (6, (true, 0, 0)),
        (89, (true, 0, 0)),
        (96, (true, 1, 1)),
    ] {
        a.ahead = Duration::from_secs(second);
        settle(&mut [&mut a, &mut b]);
        assert_eq!(seen(&a), wanted, "after {second} s");
    }
}

#[test]
fn a_packet_that_waited_and_cannot_be_sent_is_not_counted_as_sent() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24"]);
    b.device.change().set_peer(a.key, None, None, 0).unwrap();
    assert_eq!(
        a.pod_sends(&packet(ip("10.5.1.9"), ip("10.5.2.9"), b"x")),
        Ok(None)
    );
    a.work();
    let (_, initiation) = a.sent.pop_front().unwrap();
    b.receives(a.address, &initiation).unwrap();
    b.work();
    let (_, answer) = b.sent.pop_front().unwrap();
    a.receives(b.address, &answer).unwrap();
    a.device
        .work(&mut a.worker, &mut |_, _| Err(Reason::SendFailed));
    let sent = &a.device.counters.sent;
    // Two sends failed: the keepalive that confirms the session, and the packet.
    assert_eq!(
        (count(&sent.packets), sent.drops(Reason::SendFailed)),
        (0, 2)
    );
}

/// Packets for nodes that never respond exhaust the memory limit for waiting packets. Packets nevertheless reach a node that responds.
#[test]
fn dead_peers_do_not_delay_other_sessions() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.device.change().set_mtu(u16::MAX);
    // Neither node knows the other's endpoint at the time of the scheduled handshake initiation, so only a packet requests a session.
    for (node, peer, allowed) in [(&a, b.key, "10.5.2.0/24"), (&b, a.key, "10.5.1.0/24")] {
        let mut change = node.device.change();
        change.set_peer(peer, None, None, 0).unwrap();
        change.set_allowed_ip(net(allowed), peer).unwrap();
    }
    b.work();
    for number in 3..6 {
        a.add(&Node::new(number), &[&format!("10.5.{number}.0/24")]);
    }
    a.work();
    a.sent.clear();
    let snapshot = a.device.snapshot().clone();
    let mut sealer = Sealer::new(&a.device, &snapshot, Instant::now());
    let mut dropped = 0;
    for number in 3..6 {
        let large = packet(
            ip("10.5.1.9"),
            Ipv4Addr::new(10, 5, number, 9).into(),
            &[0; 60_000],
        );
        let slot = sealer
            .route(&Header::parse(&large).unwrap(), large.len())
            .unwrap();
        assert_eq!(sealer.hold(slot), Ok(SendState::AwaitingSession));
        dropped += (0..128).map(|_| sealer.park(&large)).sum::<usize>();
    }
    drop(sealer);
    assert!(dropped > 0, "there is room left");
    a.device
        .change()
        .set_peer(b.key, Some(b.address), None, 0)
        .unwrap();
    let found = packet(ip("10.5.1.9"), ip("10.5.2.9"), &[1; 60_000]);
    assert_eq!(a.pod_sends(&found), Ok(None));
    settle(&mut [&mut a, &mut b]);
    assert_eq!(b.delivered, [found]);
}

/// A subnet moves between two nodes while a third node seals packets for the subnet. Each packet goes to a node that owns the
/// subnet at some moment during the sealing of the packet.
#[test]
fn a_subnet_moves_under_packets() {
    let (mut a, mut b) = pair();
    let mut c = Node::new(3);
    a.add(&c, &[]);
    c.add(&a, &["10.5.1.0/24"]);
    settle(&mut [&mut a, &mut b, &mut c]);
    let owners = [(b.key, b.address), (c.key, c.address)];
    // The number of moves that have begun, and of those that are done. After an even number, B owns the subnet.
    let (begun, done, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let datagrams = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Relaxed) {
                let number = begun.fetch_add(1, SeqCst) + 1;
                a.device
                    .change()
                    .set_allowed_ip(net("10.5.2.0/24"), owners[(number % 2) as usize].0)
                    .unwrap();
                done.store(number, SeqCst);
            }
        });
        let sealed = packet(ip("10.5.1.9"), ip("10.5.2.9"), b"whose?");
        let mut datagrams = Vec::new();
        while datagrams.len() < 20_000 || done.load(Relaxed) < 1000 {
            let before = done.load(SeqCst);
            let (to, datagram) = a.pod_sends(&sealed).unwrap().unwrap();
            let after = begun.load(SeqCst);
            let owner = u64::from(to == owners[1].1);
            assert!(
                (before..=after).any(|number| number % 2 == owner),
                "sealed for {to} between moves {before} and {after}"
            );
            datagrams.push((to, datagram));
        }
        end.store(true, Relaxed);
        datagrams
    });
    let mut opened = [0, 0];
    for (to, datagram) in datagrams.into_iter().rev().take(1000).rev() {
        let (owner, other) = if to == b.address {
            (&mut b, &mut c)
        } else {
            (&mut c, &mut b)
        };
        assert!(matches!(
            other.receives(a.address, &datagram),
            Err(Reason::NoSession | Reason::BadTag)
        ));
        assert_eq!(owner.receives(a.address, &datagram), Ok(()));
        opened[usize::from(to == owners[1].1)] += 1;
    }
    assert!(opened.iter().sum::<i32>() == 1000, "{opened:?}");
}
