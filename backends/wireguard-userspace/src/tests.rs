//! Tests with devices that exchange datagrams in memory.

use super::*;
use crate::handshakes::Worker;
use crate::noise::{HEAD, OVERHEAD};
use crate::open::Opener;
use crate::seal::Sealer;
use ipnet::IpNet;
use packet_engine::counters::{Counters, Handshakes};
use packet_engine::drop_error::DropError;
use packet_engine::encryption::{Encryption, Open, Seal, SendState};
use packet_engine::packet::Header;
use packet_engine::socket::endpoint::Endpoint;
use packet_engine::verdict::Icmp;
use std::collections::{BTreeSet, VecDeque};
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

fn counter_value(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

fn parse_net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn parse_ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An IPv4 or IPv6 packet with a UDP header and a payload.
fn udp_packet(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
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

fn select_peer(
    sealer: &mut Sealer<'_>,
    packet: &[u8],
) -> Result<SendState, (Option<Icmp>, DropError)> {
    sealer.select_peer(&Header::parse(packet).unwrap(), packet, packet.len())
}

fn other_address() -> SocketAddr {
    SocketAddr::new(parse_ip("192.0.2.66"), 1)
}

/// A device with its address, and what it delivered or sent.
struct Node {
    device: Device,
    worker: Worker,
    address: SocketAddr,
    key: PublicKey,
    delivered: Vec<Vec<u8>>,
    sent: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Offset of the node's clock from the machine's clock, or from `stopped` if the test stopped the clock.
    ahead: Duration,
    /// Time at which the test stopped the clock, without `ahead`.
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
        self.set(peer.key, Some(peer.address), None);
        allowed.iter().for_each(|net| self.allow(net, peer.key));
    }

    fn set(&self, key: PublicKey, endpoint: Option<SocketAddr>, preshared: Option<u8>) {
        let preshared = preshared.map(|byte| Secret::new([byte; 32]));
        self.device.change().set_peer(key, endpoint, preshared, 0).unwrap();
    }

    fn allow(&self, allowed: &str, key: PublicKey) {
        self.device.change().set_allowed_ip(parse_net(allowed), key).unwrap();
    }

    fn now(&self) -> Instant {
        self.stopped.unwrap_or_else(Instant::now) + self.ahead
    }

    /// Runs the handshake thread's work until none is due.
    fn work(&mut self) {
        loop {
            let now = self.now();
            let Self { device, worker, sent, .. } = self;
            let next = device.work(now, worker, &mut |to, datagram, _| {
                sent.push_back((to.to, datagram.to_vec()));
                Ok(())
            });
            if next.is_none_or(|next| next > self.now()) {
                return;
            }
        }
    }

    fn shares(&self, peer: &Node, allowed: &str, preshared: u8) {
        self.set(peer.key, Some(peer.address), Some(preshared));
        self.allow(allowed, peer.key);
    }

    fn message(&mut self) -> Vec<u8> {
        self.work();
        self.sent.pop_front().unwrap().1
    }

    /// The datagram of a packet that the node must seal at once.
    fn sealed(&self, packet: &[u8]) -> Vec<u8> {
        self.pod_sends(packet).unwrap().unwrap().1
    }

    fn handshakes(&self) -> &Handshakes {
        &self.device.counters.handshakes
    }

    fn refused(&self, reason: DropError) -> u64 {
        self.device.counters.received.drops(reason)
    }

    fn unsent(&self, reason: DropError) -> u64 {
        self.device.counters.sent.drops(reason)
    }

    /// `None` if the packet waits for a session.
    fn pod_sends(&self, packet: &[u8]) -> Result<Option<(SocketAddr, Vec<u8>)>, DropError> {
        let snapshot = self.device.snapshot();
        let mut sealer = Sealer::new(&self.device, &snapshot, self.now());
        let state = select_peer(&mut sealer, packet).map_err(|(_, reason)| reason)?;
        let place = sealer.place(packet.len());
        let mut datagram = vec![0; place.len() + OVERHEAD];
        datagram[HEAD..HEAD + packet.len()].copy_from_slice(packet);
        match state {
            SendState::Ready(to) => {
                assert!(sealer.seal(&mut datagram));
                Ok(Some((to.to, datagram)))
            }
            SendState::AwaitingSession => {
                assert_eq!(sealer.park(&datagram[place]), 0);
                Ok(None)
            }
        }
    }

    fn receives(&mut self, from: impl Into<Endpoint>, datagram: &[u8]) -> Result<(), DropError> {
        let snapshot = self.device.snapshot();
        let mut opener = Opener::new(&self.device, &snapshot, self.now());
        let mut datagram = datagram.to_vec();
        if let Some(header) = opener.open(&mut datagram, from.into())? {
            self.delivered.push(datagram[..header.total_len].to_vec());
        }
        Ok(())
    }

    fn sees(&self, peer: &PublicKey) -> PeerStatus {
        self.device.peers().into_iter().find(|status| status.key == *peer).unwrap()
    }
}

/// Delivers datagrams until none is in flight.
fn exchange_all(nodes: &mut [&mut Node]) {
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

/// Waits until a node accepts the next initiation of a peer: it answers at most 50 per second and refuses the
/// rest.
fn sleep_briefly() {
    std::thread::sleep(Duration::from_millis(30));
}

/// Two nodes that know each other but have no session yet.
fn pair_without_session() -> (Node, Node) {
    let (a, b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24"]);
    b.add(&a, &["10.5.1.0/24"]);
    (a, b)
}

/// Two nodes with a session.
fn pair_with_session() -> (Node, Node) {
    let (mut a, mut b) = pair_without_session();
    a.allow("fd00:2::/64", b.key);
    b.allow("fd00:1::/64", a.key);
    exchange_all(&mut [&mut a, &mut b]);
    (a, b)
}

/// A packet from a pod of A to a pod of B.
fn packet_there(payload: &[u8]) -> Vec<u8> {
    udp_packet(parse_ip("10.5.1.9"), parse_ip("10.5.2.9"), payload)
}

/// A packet from a pod of B to a pod of A.
fn packet_back(payload: &[u8]) -> Vec<u8> {
    udp_packet(parse_ip("10.5.2.9"), parse_ip("10.5.1.9"), payload)
}

/// Sends a packet that the node must seal at once, and delivers it.
fn assert_passes(from: &mut Node, to: &mut Node, packet: &[u8]) {
    let (way, datagram) = from.pod_sends(packet).unwrap().unwrap();
    assert_eq!(way, to.address);
    let before = to.delivered.len();
    to.receives(from.address, &datagram).unwrap();
    assert_eq!(to.delivered[before..], [packet.to_vec()]);
}

#[test]
fn packets_pass_both_ways() {
    let (mut a, mut b) = pair_with_session();
    for (here, far) in [("10.5.1.9", "10.5.2.9"), ("fd00:1::9", "fd00:2::9")] {
        for length in [0, 1, 15, 16, 17, 1000] {
            assert_passes(
                &mut a,
                &mut b,
                &udp_packet(parse_ip(here), parse_ip(far), &vec![7; length]),
            );
            assert_passes(
                &mut b,
                &mut a,
                &udp_packet(parse_ip(far), parse_ip(here), &vec![8; length]),
            );
        }
    }
    let seen = a.sees(&b.key);
    assert!(seen.handshake.is_some() && seen.sent > 3000 && seen.received > 3000, "{seen:?}");
    assert_eq!(seen.state.allowed, [parse_net("10.5.2.0/24"), parse_net("fd00:2::/64")]);
    for node in [&a, &b] {
        assert!(counter_value(&node.handshakes().completed) > 0);
    }
}

#[test]
fn padding_hides_the_length_within_the_mtu() {
    let node = Node::new(1);
    let snapshot = node.device.snapshot();
    let sealer = Sealer::new(&node.device, &snapshot, Instant::now());
    assert_eq!(
        [0, 1, 16, 1405, 1408, 1409, 1420, 1430].map(|length| sealer.place(length).len()),
        [0, 16, 16, 1408, 1408, 1420, 1420, 1430],
        "nothing is cut"
    );
}

#[test]
fn packets_wait_for_the_first_session() {
    let (mut a, mut b) = pair_without_session();
    let all: Vec<_> = (0..5u8).map(|n| packet_there(&[n; 30])).collect();
    for packet in &all {
        assert_eq!(a.pod_sends(packet), Ok(None));
    }
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!(b.delivered, all, "in order");
    assert_eq!(
        (
            counter_value(&a.device.counters.sent.packets),
            counter_value(&a.device.counters.sent.bytes)
        ),
        (5, 5 * 58)
    );
}

/// The restarted node begins a handshake itself, because its peer does not know of the restart. So packets to
/// it are lost for a short time only.
#[test]
fn a_node_that_restarted_begins() {
    let (mut a, old) = pair_with_session();
    drop(old);
    sleep_briefly();
    let mut b = Node::new(2);
    b.add(&a, &["10.5.1.0/24"]);
    let lost = a.sealed(&packet_there(b"lost"));
    assert_eq!(b.receives(a.address, &lost), Err(DropError::NoSession));
    exchange_all(&mut [&mut a, &mut b]);
    assert_passes(&mut a, &mut b, &packet_there(b"found"));
}

#[test]
fn the_longest_allowed_ip_wins_and_moves_at_once() {
    let (mut a, mut b) = pair_with_session();
    let mut c = Node::new(3);
    a.add(&c, &["10.5.2.128/25"]);
    c.add(&a, &["10.5.1.0/24"]);
    exchange_all(&mut [&mut a, &mut b, &mut c]);
    let (high, low) =
        (udp_packet(parse_ip("10.5.1.9"), parse_ip("10.5.2.200"), b"high"), packet_there(b"low"));
    assert_passes(&mut a, &mut c, &high);
    assert_passes(&mut a, &mut b, &low);
    a.allow("10.5.2.0/24", c.key);
    assert_passes(&mut a, &mut c, &low);
    // Until a moment ago, B owned this subnet.
    assert_eq!(a.receives(b.address, &b.sealed(&packet_back(b"mine"))), Err(DropError::Spoofed));
    let remove = |subnet, key| a.device.change().remove_allowed_ip(parse_net(subnet), key);
    assert!(remove("10.5.2.0/24", &c.key));
    assert!(!remove("10.5.2.128/25", &b.key), "it is C's");
    assert_eq!(a.pod_sends(&low), Err(DropError::NoRoute));
    assert_passes(&mut a, &mut c, &high);
}

#[test]
fn waiting_packet_is_not_sent_to_a_peer_without_its_subnet() {
    let (mut a, mut b, mut c) = (Node::new(1), Node::new(2), Node::new(3));
    a.add(&b, &["10.5.2.0/24"]);
    b.add(&a, &["10.5.1.0/24"]);
    assert_eq!(a.pod_sends(&packet_there(b"x")), Ok(None));
    a.add(&c, &["10.5.2.0/24"]);
    exchange_all(&mut [&mut a, &mut b, &mut c]);
    assert_eq!((b.delivered.len(), a.unsent(DropError::NoRoute)), (0, 1));
}

#[test]
fn endpoint_follows_authentic_packets() {
    let (mut a, mut b) = pair_with_session();
    let key = b.key;
    let endpoint = |a: &Node| a.sees(&key).state.endpoint;
    let (old, moved) = (b.address, "[fd00::7]:4242".parse().unwrap());
    let datagram = b.sealed(&packet_back(b"moved"));
    let mut forged = datagram.clone();
    forged[40] ^= 1;
    // The forged datagram and the copy do not move the endpoint.
    for (from, datagram, result, known) in [
        (other_address(), &forged, Err(DropError::BadTag), old),
        (moved, &datagram, Ok(()), moved),
        (other_address(), &datagram, Err(DropError::Replayed), moved),
    ] {
        assert_eq!((a.receives(from, datagram), endpoint(&a)), (result, Some(known)));
    }
    // Without a configured endpoint, the learned one stays. A configured endpoint takes precedence.
    a.set(b.key, None, None);
    assert_eq!(endpoint(&a), Some(moved));
    a.set(b.key, Some(other_address()), None);
    assert_eq!(endpoint(&a), Some(other_address()));
    b.address = other_address();
    assert_passes(&mut a, &mut b, &packet_there(b"found"));
}

fn collect_sent(node: &mut Node) -> Vec<(Endpoint, Vec<u8>)> {
    let mut all = Vec::new();
    let now = node.now();
    node.device.work(now, &mut node.worker, &mut |to, datagram, _| {
        all.push((to, datagram.to_vec()));
        Ok(())
    });
    all
}

/// The source address of `a` for packets to the peer.
fn source_to_peer(a: &Node) -> Option<IpAddr> {
    let (snapshot, packet) = (a.device.snapshot(), packet_there(b""));
    let mut sealer = Sealer::new(&a.device, &snapshot, a.now());
    match select_peer(&mut sealer, &packet).unwrap() {
        SendState::Ready(to) => to.source,
        SendState::AwaitingSession => panic!("no session"),
    }
}

/// The address of `a` to which `b` sends.
fn known_source() -> Option<IpAddr> {
    Some(parse_ip("192.168.56.201"))
}

/// Two nodes with a session that `b` initiated, and the endpoint of `b` with the known address of `a`.
fn session_at_the_known_address() -> (Node, Node, Endpoint) {
    let (mut a, mut b) = pair_without_session();
    let from_b = Endpoint { to: b.address, source: known_source() };
    // The response leaves from the address at which the initiation arrived.
    let initiation = collect_sent(&mut b).remove(0).1;
    collect_sent(&mut a);
    a.receives(from_b, &initiation).unwrap();
    let (to, response) = collect_sent(&mut a).remove(0);
    assert_eq!(to, from_b);
    // Packets also leave from it, once the session is confirmed.
    b.receives(a.address, &response).unwrap();
    let (_, confirmation) = collect_sent(&mut b).remove(0);
    a.receives(from_b, &confirmation).unwrap();
    assert_eq!(source_to_peer(&a), known_source());
    (a, b, from_b)
}

/// A NAT in front of the peer accepts packets only from the node address that the peer knows, whatever the
/// route selects.
#[test]
fn answers_come_from_the_address_that_the_peer_uses() {
    let (a, b, _) = session_at_the_known_address();
    // Configuring the same endpoint again changes nothing.
    a.add(&b, &[]);
    assert_eq!(source_to_peer(&a), known_source());
    a.set(b.key, Some("192.0.2.1:51820".parse().unwrap()), None);
    assert_eq!(source_to_peer(&a), None, "of another endpoint nothing is known");
}

#[test]
fn source_is_forgotten_and_learned_again() {
    let (mut a, b, from_b) = session_at_the_known_address();
    let other = Endpoint { to: other_address(), ..from_b };
    a.device.forget_sources(&[other]);
    assert_eq!(source_to_peer(&a), known_source());
    a.device.forget_sources(&[other, from_b]);
    assert_eq!(source_to_peer(&a), None);
    a.receives(from_b, &b.sealed(&packet_back(b"again"))).unwrap();
    assert_eq!(source_to_peer(&a), known_source());
}

/// An address may still belong to this host although its uplink has failed. The node gives up a source
/// address at which no response arrives.
#[test]
fn a_handshake_without_answer_is_repeated_from_the_address_of_the_route() {
    let (mut a, mut b, known) = session_at_the_known_address();
    a.ahead = Duration::from_secs(181);
    assert_eq!(a.pod_sends(&packet_there(b"x")), Ok(None));
    assert_eq!(collect_sent(&mut a).remove(0).0, known);
    a.ahead = Duration::from_secs(187);
    let (to, initiation) = collect_sent(&mut a).remove(0);
    assert_eq!(to, Endpoint::from(b.address));
    // An authentic response sets the source again.
    b.ahead = a.ahead;
    b.receives(a.address, &initiation).unwrap();
    let (_, response) = collect_sent(&mut b).remove(0);
    a.receives(known, &response).unwrap();
    collect_sent(&mut a);
    assert_eq!(source_to_peer(&a), known_source());
}

#[test]
fn an_initiation_that_is_repeated_moves_nothing_and_is_refused() {
    let (mut a, mut b) = pair_without_session();
    let initiation = a.message();
    b.receives(a.address, &initiation).unwrap();
    b.work();
    sleep_briefly();
    b.receives(other_address(), &initiation).unwrap();
    b.work();
    assert_eq!(b.refused(DropError::Replayed), 1);
    assert_eq!(b.sees(&a.key).state.endpoint, Some(a.address));
}

#[test]
fn new_key_is_used_at_once_and_packets_in_flight_open() {
    let (mut a, mut b) = pair_with_session();
    let (under_way, old) = (b.sealed(&packet_back(b"under way")), a.key);
    a.rekey(77);
    let answer = packet_there(b"answer");
    assert_eq!(a.pod_sends(&answer), Ok(None), "nothing is sealed under the former key");
    exchange_all(&mut [&mut a, &mut b]);
    a.receives(b.address, &under_way).unwrap();
    assert_eq!(a.delivered.len(), 1);
    sleep_briefly();
    // B is reconfigured: the peer with the new key takes the subnet, and then the old peer is removed.
    b.add(&a, &["10.5.1.0/24"]);
    assert!(b.device.change().remove_peer(&old));
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!(b.delivered, [answer]);
    assert_passes(&mut a, &mut b, &packet_there(b"again"));
    assert_passes(&mut b, &mut a, &packet_back(b"back"));
}

#[test]
fn a_new_preshared_key_leaves_the_session_and_counts_for_the_next() {
    let (mut a, mut b) = pair_with_session();
    a.set(b.key, None, Some(5));
    exchange_all(&mut [&mut a, &mut b]);
    assert_passes(&mut a, &mut b, &packet_there(b"there"));
    assert_passes(&mut b, &mut a, &packet_back(b"back"));
    // B restarts. Without the preshared key, there is no session; with it, there is one.
    for (preshared, works) in [(None, false), (Some(5), true)] {
        b = Node::new(2);
        b.set(a.key, Some(a.address), preshared);
        b.allow("10.5.1.0/24", a.key);
        sleep_briefly();
        exchange_all(&mut [&mut a, &mut b]);
        assert_eq!(counter_value(&b.handshakes().completed) > 0, works);
    }
    assert_passes(&mut a, &mut b, &packet_there(b"there"));
}

#[test]
fn removed_peer_is_gone_for_old_snapshots() {
    let (a, b) = pair_with_session();
    let mut datagram = b.sealed(&packet_back(b"late"));
    let device = &a.device;
    let before = device.snapshot();
    assert!(device.change().remove_peer(&b.key) && !device.change().remove_peer(&b.key));
    let there = packet_there(b"there");
    let mut sealer = Sealer::new(device, &before, Instant::now());
    assert_eq!(select_peer(&mut sealer, &there), Err((None, DropError::NoRoute)));
    drop(sealer);
    let mut opener = Opener::new(device, &before, Instant::now());
    assert_eq!(opener.open(&mut datagram, b.address.into()), Err(DropError::NoSession));
    drop(opener);
    assert_eq!(a.pod_sends(&there), Err(DropError::NoRoute));
    assert!(a.device.peers().is_empty());
}

#[test]
fn keys_that_no_peer_can_have_are_refused() {
    let a = Node::new(1);
    let mut change = a.device.change();
    assert_eq!(change.set_peer(PublicKey([0; 32]), None, None, 0), Err(PeerError::WeakKey));
    assert_eq!(change.set_peer(a.key, None, None, 0), Err(PeerError::OwnKey));
    assert_eq!(
        change.set_allowed_ip(parse_net("10.5.2.0/24"), PublicKey([9; 32])),
        Err(PeerError::NoPeer)
    );
    drop(change);
    assert!(a.device.peers().is_empty());
}

#[test]
fn a_keepalive_is_sent_at_once_and_repeated() {
    let (mut a, mut b) = pair_with_session();
    let mut received = b.sees(&a.key).received;
    a.device.change().set_peer(b.key, None, None, 1).unwrap();
    for seconds in 0..3 {
        a.ahead = Duration::from_millis(1100 * seconds);
        exchange_all(&mut [&mut a, &mut b]);
        received += OVERHEAD as u64;
        assert_eq!(b.sees(&a.key).received, received, "keepalive {seconds}");
    }
}

#[test]
fn peer_gets_in_with_a_cookie_under_load() {
    let (mut a, mut b) = pair_without_session();
    let mut stranger = Node::new(3);
    stranger.add(&b, &[]);
    let initiation = stranger.message();
    // Only A initiates a handshake.
    b.work();
    b.sent.clear();
    b.stopped = Some(b.now());
    // The first answer is a cookie reply, the second one a response.
    for (seconds, kind) in [(0, 3), (6, 2)] {
        a.ahead = Duration::from_secs(seconds);
        let asked = a.message();
        for port in 1..300 {
            b.receives(SocketAddr::new(other_address().ip(), port), &initiation).unwrap();
        }
        b.work();
        b.sent.clear();
        b.receives(a.address, &asked).unwrap();
        b.work();
        b.sent.retain(|(to, _)| *to == a.address);
        let answer = b.message();
        assert_eq!(answer[0], kind);
        a.receives(b.address, &answer).unwrap();
        a.work();
    }
    assert_eq!(counter_value(&a.handshakes().completed), 1);
}

/// Lets `count` copies of a packet wait for a session, and returns the number of dropped packets.
fn park_copies(node: &Node, packet: &[u8], count: usize) -> usize {
    let snapshot = node.device.snapshot();
    let mut sealer = Sealer::new(&node.device, &snapshot, Instant::now());
    assert_eq!(select_peer(&mut sealer, packet), Ok(SendState::AwaitingSession));
    (0..count).map(|_| sealer.park(packet)).sum()
}

#[test]
fn waiting_packets_are_bounded() {
    let (mut a, b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24"]);
    assert_eq!(park_copies(&a, &packet_there(&[0; 1300]), 200), 72, "128 stay");
    let mut left = |from: SocketAddr| {
        usize::from(a.receives(from, &[&1u32.to_le_bytes()[..], &[7; 144]].concat()) == Ok(()))
    };
    let of_one: usize = (0..2000).map(|_| left(b.address)).sum();
    assert_eq!(of_one, 128, "of one sender");
    let many =
        (0..20_000).map(|n| left(SocketAddr::new(Ipv4Addr::from(0x0a00_0000 + n).into(), 1)));
    assert_eq!(many.sum::<usize>(), 1024 - 128);
    a.device.change().remove_peer(&b.key);
    assert_eq!(a.unsent(DropError::NoSession), 128);
}

/// Both sides answer each other's initiations. But neither can use an answer, or a session that its peer has
/// not confirmed.
#[test]
fn handshakes_with_two_preshared_keys_are_given_up() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.shares(&b, "10.5.2.0/24", 1);
    b.shares(&a, "10.5.1.0/24", 2);
    for second in 0..120 {
        a.ahead = Duration::from_secs(second);
        b.ahead = a.ahead;
        assert_eq!(a.pod_sends(&packet_there(b"x")), Ok(None));
        assert_eq!(b.pod_sends(&packet_back(b"y")), Ok(None));
        exchange_all(&mut [&mut a, &mut b]);
    }
    let lost = [&a, &b].map(|node| {
        let handshakes = node.handshakes();
        let [initiated, answered, failed, completed] = [
            &handshakes.initiated,
            &handshakes.answered,
            &handshakes.failed,
            &handshakes.completed,
        ]
        .map(counter_value);
        assert!((10..=25).contains(&initiated) && answered >= 10, "{handshakes:?}");
        assert_eq!((failed, completed), (1, 0));
        let lost = node.unsent(DropError::NoSession) as usize;
        assert!((88..=100).contains(&lost), "{lost} packets waited for a session in vain");
        lost
    });
    // Once both have the same key, all packets are delivered that were not dropped by then.
    (a.ahead, b.ahead) = (Duration::from_secs(130), Duration::from_secs(130));
    b.set(a.key, None, Some(1));
    assert_eq!(b.pod_sends(&packet_back(b"z")), Ok(None));
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!([b.delivered.len(), a.delivered.len()], [120 - lost[0], 121 - lost[1]]);
}

/// A node that answered its peer no longer repeats its own initiation. While a packet waits, it still sends
/// new ones; it drops the packet after 90 seconds.
#[test]
fn a_single_packet_is_tried_for_until_it_is_given_up() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.shares(&b, "10.5.2.0/24", 1);
    b.shares(&a, "10.5.1.0/24", 2);
    assert_eq!(a.pod_sends(&packet_there(b"x")), Ok(None));
    for (second, repeats, failed) in
        [(0, false, 0), (4, false, 0), (6, true, 0), (89, true, 0), (96, true, 1)]
    {
        a.ahead = Duration::from_secs(second);
        exchange_all(&mut [&mut a, &mut b]);
        let handshakes = a.handshakes();
        let seen = (
            counter_value(&handshakes.initiated) > 1,
            counter_value(&handshakes.failed),
            a.unsent(DropError::NoSession),
        );
        assert_eq!(seen, (repeats, failed, failed), "after {second} s");
    }
}

#[test]
fn a_packet_that_waited_and_cannot_be_sent_is_not_counted_as_sent() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.add(&b, &["10.5.2.0/24"]);
    b.set(a.key, None, None);
    assert_eq!(a.pod_sends(&packet_there(b"x")), Ok(None));
    b.receives(a.address, &a.message()).unwrap();
    a.receives(b.address, &b.message()).unwrap();
    a.device.work(Instant::now(), &mut a.worker, &mut |_, _, _| Err(DropError::SendFailed));
    // Two sends failed: the keepalive that confirms the session, and the packet.
    let sent = counter_value(&a.device.counters.sent.packets);
    assert_eq!((sent, a.unsent(DropError::SendFailed)), (0, 2));
}

/// Packets for silent nodes use up the memory for waiting packets. Packets still reach a node that responds.
#[test]
fn dead_peers_do_not_delay_other_sessions() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.device.change().set_mtu(u16::MAX);
    // Neither node knows the other's endpoint at the time of the scheduled handshake initiation, so only a packet requests a session.
    for (node, peer, allowed) in [(&a, b.key, "10.5.2.0/24"), (&b, a.key, "10.5.1.0/24")] {
        node.set(peer, None, None);
        node.allow(allowed, peer);
    }
    b.work();
    for number in 3..6 {
        a.add(&Node::new(number), &[&format!("10.5.{number}.0/24")]);
    }
    a.work();
    a.sent.clear();
    let dropped = (3..6).map(|number| {
        let to = Ipv4Addr::new(10, 5, number, 9).into();
        park_copies(&a, &udp_packet(parse_ip("10.5.1.9"), to, &[0; 60_000]), 128)
    });
    assert!(dropped.sum::<usize>() > 0, "there is room left");
    a.set(b.key, Some(b.address), None);
    let found = packet_there(&[1; 60_000]);
    assert_eq!(a.pod_sends(&found), Ok(None));
    exchange_all(&mut [&mut a, &mut b]);
    assert_eq!(b.delivered, [found]);
}

/// A subnet moves while a third node seals packets for it. Each packet goes to a node that owns the subnet at
/// some moment of the sealing.
#[test]
fn a_subnet_moves_under_packets() {
    let (mut a, mut b) = pair_with_session();
    let mut c = Node::new(3);
    a.add(&c, &[]);
    c.add(&a, &["10.5.1.0/24"]);
    exchange_all(&mut [&mut a, &mut b, &mut c]);
    let owners = [b.key, c.key];
    // The number of moves that have begun, and of those that are done. After an even number, B owns the subnet.
    let (begun, done, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let datagrams = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Relaxed) {
                let number = begun.fetch_add(1, SeqCst) + 1;
                a.allow("10.5.2.0/24", owners[(number % 2) as usize]);
                done.store(number, SeqCst);
            }
        });
        let mut datagrams = Vec::new();
        while datagrams.len() < 20_000 || done.load(Relaxed) < 1000 {
            let before = done.load(SeqCst);
            let (to, datagram) = a.pod_sends(&packet_there(b"whose?")).unwrap().unwrap();
            let after = begun.load(SeqCst);
            let owner = u64::from(to == c.address);
            assert!(
                (before..=after).any(|number| number % 2 == owner),
                "sealed for {to} between moves {before} and {after}"
            );
            datagrams.push((to, datagram));
        }
        end.store(true, Relaxed);
        datagrams
    });
    for (to, datagram) in &datagrams[datagrams.len() - 1000..] {
        let owner = if *to == b.address { &mut b } else { &mut c };
        assert_eq!(owner.receives(a.address, datagram), Ok(()));
    }
}

/// The endpoint of one peer is inside the allowed IPs of another. An operator's mistake, or a pod network
/// that contains the nodes' addresses, has this effect.
#[test]
fn datagrams_to_a_peer_are_dropped_in_the_tunnel_and_other_packets_to_it_pass() {
    let (mut a, b) = pair_with_session();
    let far = [9, 8].map(|seed| Secret::new([seed; 32]).public());
    for (node, peer) in [(&a, &b), (&b, &a)] {
        for (far, endpoint) in far.iter().zip(["192.0.2.7:51820", "[2001:db8::7]:51821"]) {
            node.set(*far, endpoint.parse().ok(), None);
        }
        for net in ["192.0.2.0/24", "2001:db8::/64", "10.5.7.0/24", "fd00::/64"] {
            node.allow(net, peer.key);
        }
    }
    let packet_to = |to: &str, port: u16| {
        let from = if to.contains(':') { parse_ip("fd00::1") } else { parse_ip("10.5.7.1") };
        let mut packet = udp_packet(from, parse_ip(to), &[]);
        let port_at = packet.len() - 6;
        packet[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
        packet
    };
    // Packets to other ports or addresses pass, and so do tunnels between pods.
    for (to, port, passes) in [
        ("192.0.2.7", 51820, false),
        ("2001:db8::7", 51821, false),
        ("192.0.2.7", 51821, true),
        ("192.0.2.8", 51820, true),
        ("2001:db8::7", 51820, true),
        ("10.5.7.9", 51820, true),
    ] {
        let sent = a.pod_sends(&packet_to(to, port)).map(drop);
        assert_eq!(sent, if passes { Ok(()) } else { Err(DropError::Loop) }, "{to} {port}");
    }
    // A peer without this check may send such a datagram. It is not forwarded to another peer.
    b.device.change().remove_peer(&far[0]);
    let datagram = b.sealed(&packet_to("192.0.2.7", 51820));
    assert_eq!(a.receives(b.address, &datagram), Err(DropError::Loop));
}

#[test]
fn unsendable_handshake_is_counted() {
    let (mut a, b) = (Node::new(1), Node::new(2));
    a.add(&b, &[]);
    a.device.work(Instant::now(), &mut a.worker, &mut |_, _, _| Err(DropError::NoEndpoint));
    assert_eq!((a.unsent(DropError::NoEndpoint), counter_value(&a.handshakes().initiated)), (1, 0));
}

/// As the kernel does (HANDSHAKE_DSCP). A keepalive has the same class as packets.
#[test]
fn handshakes_ask_for_a_better_class_than_packets() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.add(&b, &[]);
    b.add(&a, &[]);
    let mut classes = BTreeSet::new();
    for _ in 0..2 {
        for turn in [true, false] {
            let (node, peer) = if turn { (&mut a, &mut b) } else { (&mut b, &mut a) };
            node.device.work(Instant::now(), &mut node.worker, &mut |_, datagram, tos| {
                classes.insert((datagram[0], tos));
                let _ = peer.receives(node.address, datagram);
                Ok(())
            });
        }
    }
    assert_eq!(classes, BTreeSet::from([(1, 0x88), (2, 0x88), (4, 0)]));
}
