//! Floods of handshake messages: who can still complete a handshake? The handshake thread does one round of
//! work per millisecond, which one processor can sustain.

use super::*;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;

/// Messages per millisecond, which is 150 000 per second.
const FLOOD: usize = 150;
const INITIATION: usize = 148;
const ANSWER: usize = 92;
const COOKIE: usize = 64;

/// A peer, or an unknown sender that has only the node's public key.
struct Sender {
    tunn: Tunn,
    key: PublicKey,
    address: SocketAddr,
    completed: usize,
}

impl Sender {
    fn new(seed: u8, node: &Node, address: SocketAddr) -> Self {
        let private = x25519::StaticSecret::from([seed; 32]);
        let key = PublicKey(*x25519::PublicKey::from(&private).as_bytes());
        let tunn =
            Tunn::new(private, x25519::PublicKey::from(node.key.0), None, None, seed.into(), None);
        Self { tunn, key, address, completed: 0 }
    }

    /// Adds peers to the node, each with its own address.
    fn peers(node: &Node, count: u8) -> Vec<Self> {
        let peer = |number| {
            let peer = Self::new(
                100 + number,
                node,
                SocketAddr::new(Ipv4Addr::new(10, 1, 0, number).into(), 51820),
            );
            node.device.change().set_peer(peer.key, Some(peer.address), None, 0).unwrap();
            peer
        };
        (0..count).map(peer).collect()
    }

    fn initiation(&mut self) -> Vec<u8> {
        let mut buffer = [0; INITIATION];
        match self.tunn.format_handshake_initiation(&mut buffer, true) {
            TunnResult::WriteToNetwork(message) => message.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Handles a message from the node, and returns the reply.
    fn takes(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let mut buffer = [0; 256];
        match self.tunn.decapsulate(None, message, &mut buffer) {
            TunnResult::WriteToNetwork(reply) if message.len() == ANSWER => {
                self.completed += 1;
                Some(reply.to_vec())
            }
            _ => None,
        }
    }

    /// Floods the node until it demands a proof of the sender's address. Returns an initiation with this
    /// proof.
    fn proven(&mut self, node: &mut Node) -> Vec<u8> {
        // A cookie reply refers to one message, so the flood repeats a single message.
        let message = self.initiation();
        for _ in 0..1000 {
            receive_repeatedly(node, self.address, &message, FLOOD);
            work_round(node);
            while let Some((to, message)) = node.sent.pop_front() {
                if to == self.address && message.len() == COOKIE {
                    self.takes(&message);
                    node.sent.clear();
                    // Let the node process the rest of the flood.
                    (0..100).for_each(|_| work_round(node));
                    return self.initiation();
                }
            }
        }
        panic!("no cookie")
    }
}

/// A node whose clock advances only with each round of work.
fn flooded_node() -> Node {
    let mut node = Node::new(1);
    node.stopped = Some(Instant::now());
    node
}

/// One round of the handshake thread, which takes a millisecond of the node's clock.
fn work_round(node: &mut Node) {
    let now = node.now();
    let Node { device, worker, sent, .. } = node;
    device.work(now, worker, &mut |to, datagram, _| {
        sent.push_back((to.to, datagram.to_vec()));
        Ok(())
    });
    node.ahead += Duration::from_millis(1);
}

/// How often the node queued the message for the handshake thread.
fn receive_repeatedly(node: &mut Node, from: SocketAddr, message: &[u8], times: usize) -> usize {
    (0..times).filter(|_| node.receives(from, message).is_ok()).count()
}

/// Delivers the node's messages to the peers, and their replies to the node.
fn deliver_all(node: &mut Node, peers: &mut [Sender]) {
    while let Some((to, message)) = node.sent.pop_front() {
        if message.len() == INITIATION {
            continue;
        }
        for peer in peers.iter_mut().filter(|peer| peer.address == to) {
            if let Some(reply) = peer.takes(&message) {
                node.receives(peer.address, &reply).unwrap();
            }
        }
    }
}

/// The number of peers that complete a handshake in `tries` attempts, each at a different time, during the
/// `flood`.
fn renew_sessions(
    node: &mut Node,
    peers: &mut [Sender],
    tries: usize,
    mut flood: impl FnMut(&mut Node),
) -> usize {
    for _ in 0..tries {
        for turn in 0..peers.len() {
            flood(node);
            if peers[turn].completed == 0 {
                let (address, initiation) = (peers[turn].address, peers[turn].initiation());
                let _ = node.receives(address, &initiation);
            }
            work_round(node);
            deliver_all(node, peers);
        }
        // Deliver what is in flight.
        (0..100).for_each(|_| {
            flood(node);
            work_round(node);
            deliver_all(node, peers);
        });
    }
    peers.iter().filter(|peer| peer.completed > 0).count()
}

/// Unknown senders prove their addresses once and then repeat one message each. Peers behind the NAT of a
/// sender share its address; their port tells them from the flood. A sender may also have many IPv6 networks.
#[test]
fn peers_renew_while_proven_addresses_flood() {
    let networks = (0..30).map(|number| {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, number, 0, 0, 0, 1);
        SocketAddr::new(address.into(), 9)
    });
    for (behind_nat, from) in
        [(false, vec![other_address()]), (true, vec![other_address()]), (false, networks.collect())]
    {
        let mut node = flooded_node();
        let mut peers = Sender::peers(&node, 40);
        for (port, peer) in (2000..).zip(&mut peers).filter(|_| behind_nat) {
            peer.address = SocketAddr::new(other_address().ip(), port);
            node.set(peer.key, Some(peer.address), None);
        }
        let strangers: Vec<(SocketAddr, Vec<u8>)> = (200..)
            .zip(&from)
            .map(|(seed, from)| (*from, Sender::new(seed, &node, *from).proven(&mut node)))
            .collect();
        let (before, start) = (node.refused(DropError::UnknownPeer), node.now());
        // The first attempt may get a cookie reply. The second one uses the cookie.
        let renewed = renew_sessions(&mut node, &mut peers, 2, |node| {
            for (address, message) in &strangers {
                receive_repeatedly(node, *address, message, FLOOD / strangers.len());
            }
        });
        assert!(renewed >= 38, "{renewed} of 40 peers, {} senders", from.len());
        // The token bucket admits some messages of an address, and so does the queue whenever the node was not under load before.
        let curves = (node.refused(DropError::UnknownPeer) - before) as f64;
        let seconds = (node.now() - start).as_secs_f64();
        assert!(
            from.len() > 1 || curves < 200.0 * seconds + 200.0,
            "{curves} messages of the flood reached the curve in {seconds} s"
        );
    }
}

#[test]
fn a_cookie_proves_an_address_with_its_port() {
    let mut node = flooded_node();
    let mut stranger = Sender::new(99, &node, other_address());
    let message = stranger.proven(&mut node);
    let snapshot = node.device.snapshot().clone();
    let now = node.now();
    let identity = snapshot.identity.as_ref().unwrap();
    let proof = |from: SocketAddr| identity.proof(from, &message, now);
    let mut damaged = message.clone();
    damaged[100] ^= 1;
    assert_eq!(proof(other_address()), Some(true));
    assert_eq!(proof(SocketAddr::new(other_address().ip(), 2)), Some(false));
    assert_eq!(proof(SocketAddr::new(parse_ip("192.0.2.67"), 1)), Some(false));
    assert_eq!(identity.proof(other_address(), &damaged, now), None);
}

/// While the handshake thread gets no processor time, one address leaves room in the inbox for others.
#[test]
fn a_full_inbox_has_room_for_other_sources() {
    let mut node = flooded_node();
    let mut peers = Sender::peers(&node, 8);
    let message = Sender::new(99, &node, other_address()).initiation();
    assert!(receive_repeatedly(&mut node, other_address(), &message, 20_000) < 600);
    let refused = peers
        .iter_mut()
        .filter_map(|peer| node.receives(peer.address, &peer.initiation()).err())
        .count();
    // By chance, a peer may share a counter with the flood. One in 256 peers does, and three of eight in one run of 300 000.
    assert!(refused <= 2, "{refused} of 8 peers found no room");
}

/// A thousand initiations per second from forged addresses are 1.2 Mb/s. Forging them takes only the node's
/// public key.
#[test]
fn a_thousand_forged_initiations_a_second_are_no_load() {
    let mut node = flooded_node();
    let mut peers = Sender::peers(&node, 40);
    let mut stranger = Sender::new(99, &node, other_address());
    let forged: Vec<Vec<u8>> = (0..64).map(|_| stranger.initiation()).collect();
    let mut number = 0u32;
    let mut flood = |node: &mut Node| {
        number += 1;
        let from = SocketAddr::new(Ipv4Addr::from(0x0a63_0000 + number).into(), 9);
        receive_repeatedly(node, from, &forged[number as usize % forged.len()], 1);
    };
    for _ in 0..1500 {
        flood(&mut node);
        work_round(&mut node);
    }
    node.sent.clear();
    assert_eq!(
        (
            renew_sessions(&mut node, &mut peers, 1, flood),
            counter_value(&node.handshakes().cookies)
        ),
        (40, 0)
    );
}

/// Unknown senders send initiations from any address.
#[test]
fn peer_answers_find_room_during_a_flood_of_initiations() {
    let mut node = flooded_node();
    let mut peers = Sender::peers(&node, 40);
    let message = Sender::new(99, &node, other_address()).initiation();
    let mut number = 0;
    for _ in 0..300 {
        for _ in 0..FLOOD {
            number += 1;
            let _ = node.receives(
                SocketAddr::new(Ipv4Addr::from(0x0a63_0000 + number).into(), 9),
                &message,
            );
        }
        work_round(&mut node);
        while let Some((to, message)) = node.sent.pop_front() {
            let Some(peer) =
                peers.iter_mut().find(|peer| peer.address == to && message.len() == INITIATION)
            else {
                continue;
            };
            let mut answer = [0; 256];
            let TunnResult::WriteToNetwork(answer) =
                peer.tunn.decapsulate(None, &message, &mut answer)
            else {
                panic!()
            };
            let _ = node.receives(to, answer);
        }
    }
    assert!(counter_value(&node.handshakes().completed) >= 38, "{:?}", node.handshakes());
}

/// Anyone on the path can send copies of a peer's initiation.
#[test]
fn a_copy_of_an_initiation_waits_for_no_lock() {
    let mut node = flooded_node();
    let mut peers = Sender::peers(&node, 1);
    let recorded = peers[0].initiation();
    node.receives(peers[0].address, &recorded).unwrap();
    work_round(&mut node);
    deliver_all(&mut node, &mut peers);
    assert_eq!(peers[0].completed, 1);
    node.ahead += Duration::from_secs(5);
    let snapshot = node.device.snapshot().clone();
    let held = snapshot.peers.get(&peers[0].key).unwrap().lock();
    receive_repeatedly(&mut node, other_address(), &recorded, 100);
    let (now, (done, waits)) = (node.now(), std::sync::mpsc::channel());
    let dropped = std::thread::scope(|scope| {
        let Node { device, worker, .. } = &mut node;
        scope.spawn(move || {
            for _ in 0..20 {
                device.messages(now, worker, &device.snapshot(), &mut |_, _| true);
            }
            done.send(device.counters.received.drops(DropError::Replayed))
        });
        // If the thread waited for the lock, it would never finish.
        let dropped = waits.recv_timeout(wait::Wait::start().left());
        drop(held);
        dropped
    });
    assert_eq!(dropped, Ok(100));
}

/// An attacker sends at once many recorded initiations that never arrived. Each is genuine, so only curve
/// operations show that it is too old.
#[test]
fn refused_initiations_count_and_do_not_keep_the_peer_out() {
    let mut node = flooded_node();
    let mut peers = Sender::peers(&node, 1);
    let mut recorded: Vec<Vec<u8>> = (0..61).map(|_| peers[0].initiation()).collect();
    node.receives(peers[0].address, &recorded.pop().unwrap()).unwrap();
    (0..50).for_each(|_| work_round(&mut node));
    deliver_all(&mut node, &mut peers);
    let replayed = |node: &Node| node.device.counters.received.drops(DropError::Replayed);
    // Six per millisecond.
    for old in recorded.chunks(6) {
        old.iter().for_each(|old| node.receives(other_address(), old).unwrap());
        work_round(&mut node);
    }
    assert_eq!((replayed(&node), peers[0].completed), (1, 1));
    // Meanwhile, the peer is asked once to prove its address.
    peers[0].completed = 0;
    let unknown = recorded[6].clone();
    let renewed = renew_sessions(&mut node, &mut peers, 2, |node| {
        receive_repeatedly(node, other_address(), &unknown, 1);
    });
    assert_eq!(renewed, 1);
}
