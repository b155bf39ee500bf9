//! The engine with WireGuard: GSO packets enter at one node and leave at another, over real sockets.

use super::*;
use crate::drop_error::DropError;
use crate::engine::backlog::Unit;
use crate::engine::handshakes::{self, Handshakes};
use crate::wireguard::{Device as WireGuard, PublicKey, Secret, Worker};
use etherparse::PacketBuilder;
use std::net::SocketAddr;

/// One end of the tunnel. The test itself does the work of the engine's threads.
struct End {
    tun: Arc<FakeTun>,
    socket: Arc<Socket>,
    address: SocketAddr,
    device: Arc<WireGuard>,
    config: Arc<EngineConfig>,
    counters: Arc<Counters>,
    worker: Worker,
    sender: Sender,
    receiver: Receiver,
}

impl End {
    fn new(seed: u8) -> Self {
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = bound.local_addr().unwrap();
        let socket = Socket::inherit_if_bound_to(
            bound.into(),
            address.ip(),
            address.port(),
            &Features::offload(),
        );
        let counters = Arc::<Counters>::default();
        let device = Arc::new(WireGuard::new(counters.clone()));
        let mut change = device.change();
        change.set_private_key(Secret::new([seed; 32]));
        change.set_mtu(1420);
        drop(change);
        let config = Arc::new(EngineConfig {
            framing: Framing::WireGuard,
            ..EngineConfig::clone(&engine_config())
        });
        let (tun, socket) = (FakeTun::new(ALL, Vec::new(), Vec::new()), Arc::new(socket.unwrap()));
        Self {
            tun,
            socket,
            address,
            device,
            config,
            counters,
            worker: Worker::default(),
            sender: Sender::default(),
            receiver: Receiver::new(64),
        }
    }

    fn meets(&self, other: &End, subnet: &str) {
        let key = other.device.public_key().unwrap();
        self.device.change().set_peer(key, Some(other.address), None, 0).unwrap();
        self.allow(key, &[subnet, "fdfd:fdfd:fdfd:fdfd::/64", "fcfc:fcfc:fcfc:fcfc::/64"]);
    }

    fn allow(&self, key: PublicKey, nets: &[&str]) {
        let mut change = self.device.change();
        nets.iter().for_each(|net| change.set_allowed_ip(net.parse().unwrap(), key).unwrap());
    }

    fn reads(&self, packet: Vec<u8>) {
        self.tun.reads.lock().unwrap().push_back(Ok(packet));
    }

    /// Handles what arrives until `counter` is at least `least`.
    fn turn_until(&mut self, least: usize, counter: impl Fn(&Counters) -> usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while counter(&self.counters) < least && Instant::now() < deadline {
            self.turn();
        }
    }

    /// Sends the packets that wait in the device, handles handshakes, and receives datagrams.
    fn turn(&mut self) {
        let (table, wake) = (
            Arc::new(ArcSwap::from_pointee(table_for_recipes(true))),
            Arc::new(Wake::new().unwrap()),
        );
        let tx = Tx {
            config: self.config.clone(),
            tun: self.tun.clone(),
            sockets: vec![self.socket.clone()],
            table: table.clone(),
            wireguard: Some(self.device.clone()),
            counters: self.counters.clone(),
            wake: wake.clone(),
        };
        read_all_and_send_batches(
            &tx,
            &table.load(),
            &mut tx::TxState::new(&self.config),
            usize::MAX,
        );
        let Self { device, worker, sender, socket, .. } = self;
        device.work(worker, &mut |to, datagram| {
            let message = Message {
                to,
                pieces: 0..1,
                segment: datagram.len(),
                count: 1,
                bytes: datagram.len(),
                tos: 0,
                socket: 0,
            };
            let piece = Piece { made: true, at: 0, len: datagram.len() as u32 };
            sender.send(socket, &[message], &[piece], datagram, &[]);
            Ok(())
        });
        let rx = Rx {
            config: self.config.clone(),
            queues: Arc::new([self.tun.clone()]),
            socket: self.socket.clone(),
            table: table.clone(),
            wireguard: Some(self.device.clone()),
            counters: self.counters.clone(),
            wake,
        };
        let mut state = rx::RxState::new(ALL);
        while let Ok(count) = self.socket.receive(&mut self.receiver, 64) {
            rx.process_batch_and_count_bytes(count, &mut self.receiver, &table.load(), &mut state);
        }
    }

    fn delivered(&self) -> Vec<Vec<u8>> {
        self.tun
            .written
            .lock()
            .unwrap()
            .iter()
            .flat_map(|write| packets_in_write(write, ALL))
            .collect()
    }
}

fn pair() -> (End, End) {
    let (mut a, mut b) = (End::new(1), End::new(2));
    a.meets(&b, "10.5.2.0/24");
    b.meets(&a, "10.5.1.0/24");
    let deadline = Instant::now() + Duration::from_secs(60);
    let completed = |end: &End| counter_value(&end.counters.handshakes.completed) > 0;
    while !(completed(&a) && completed(&b)) && Instant::now() < deadline {
        a.turn();
        b.turn();
    }
    (a, b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_segment_arrives_as_it_was(all in vec((any_packet_recipe(20_000), 400usize..1300), 1..12)) {
        let (mut a, mut b) = pair();
        let mut wanted = Vec::new();
        for (recipe, size) in all {
            let packet = device_frame_for_recipe(&Recipe { ipv6: false, ..recipe }, size);
            wanted.extend(packets_in_write(&packet, ALL));
            a.reads(packet);
        }
        a.turn();
        prop_assert_eq!((counter_value(&a.counters.sent.packets), a.counters.sent.all_drops()), (wanted.len(), 0));
        b.turn_until(wanted.len(), |counters| counter_value(&counters.received.packets));
        prop_assert_eq!(b.counters.received.all_drops(), 0);
        // Flows with few bytes go first, so the order between flows is not that of sending. Merged packets get consecutive identifications, so these
        // are not compared.
        let bare = |packets: Vec<Vec<u8>>| {
            let mut bare: Vec<_> = packets.iter().map(|packet| [&packet[..4], &packet[6..10], &packet[12..]].concat()).collect();
            bare.sort();
            bare
        };
        prop_assert_eq!(bare(b.delivered()), bare(wanted));
    }
}

/// The endpoint of one peer is inside the allowed IPs of another. An operator's mistake, or a pod network
/// that contains the nodes' addresses, has this effect.
#[test]
fn datagrams_to_a_peer_are_dropped_in_the_tunnel_and_other_packets_to_it_pass() {
    let (mut a, mut b) = pair();
    let far = [9, 8].map(|seed| Secret::new([seed; 32]).public());
    for end in [&a, &b] {
        let key = end.device.peers()[0].key;
        for (far, endpoint) in far.iter().zip(["192.0.2.7:51820", "[2001:db8::7]:51821"]) {
            let endpoint = Some(endpoint.parse().unwrap());
            end.device.change().set_peer(*far, endpoint, None, 0).unwrap();
        }
        end.allow(key, &["192.0.2.0/24", "2001:db8::/64", "10.5.7.0/24"]);
    }
    let send = |end: &mut End, to: &str, port: u16| {
        let builder = match to.parse().unwrap() {
            IpAddr::V4(to) => PacketBuilder::ipv4([10, 5, 7, 1], to.octets(), 64),
            IpAddr::V6(to) => PacketBuilder::ipv6([0xfd; 16], to.octets(), 64),
        };
        let mut packet = VnetHeader::default().bytes().to_vec();
        builder.udp(0x2000, port).write(&mut packet, &[]).unwrap();
        end.reads(packet);
        let loops = end.counters.sent.drops(DropError::Loop);
        end.turn();
        end.counters.sent.drops(DropError::Loop) - loops
    };
    // Packets to other ports or addresses pass, and so do tunnels between pods.
    for (to, port, dropped) in [
        ("192.0.2.7", 51820, 1),
        ("2001:db8::7", 51821, 1),
        ("192.0.2.7", 51821, 0),
        ("192.0.2.8", 51820, 0),
        ("2001:db8::7", 51820, 0),
        ("10.5.7.9", 51820, 0),
    ] {
        assert_eq!(send(&mut a, to, port), dropped, "{to} {port}");
    }
    // A peer without this check may send such a datagram. It is not forwarded to another peer.
    b.device.change().remove_peer(&far[0]);
    assert_eq!(send(&mut b, "192.0.2.7", 51820), 0);
    a.turn_until(1, |counters| counters.received.drops(DropError::Loop) as usize);
    assert_eq!(a.counters.received.drops(DropError::Loop), 1);
}

/// Segments of equal size leave in one send and arrive in one write.
#[test]
fn a_stream_stays_together() {
    let (mut a, mut b) = pair();
    let stream = device_frame_for_recipe(&Recipe::ipv4_tcp_segment(5, 1368 * 40), 1368);
    a.reads(stream.clone());
    let before = counter_value(&a.counters.sent.units);
    a.turn();
    let sent = &a.counters.sent;
    assert_eq!((counter_value(&sent.packets), counter_value(&sent.units) - before), (40, 1));
    b.turn_until(40, |counters| counter_value(&counters.received.packets));
    let received = &b.counters.received;
    assert_eq!((counter_value(&received.packets), counter_value(&received.units)), (40, 1));
    let written = b.tun.written.lock().unwrap();
    let vnet = VnetHeader::parse(&written[0]).unwrap();
    assert_eq!((written.len(), vnet.gso, vnet.gso_size), (1, Gso::Tcp4, 1368));
    assert_eq!(written[0].len(), stream.len());
}

/// With several queues, a thread seals only a few datagrams before it sends them, because other threads may
/// overtake it.
#[test]
fn few_datagrams_wait_sealed_with_several_queues() {
    let (a, _b) = pair();
    for (queues, runs) in [(1, vec![320]), (2, vec![80; 4])] {
        let reads =
            vec![Ok(device_frame_for_recipe(&Recipe::ipv4_tcp_segment(5, 1368 * 40), 1368)); 8];
        let (mut tx, line) = build_tx_and_socket(&FakeTun::new(ALL, reads, Vec::new()), Vec::new());
        let mut config = EngineConfig::clone(&a.config);
        config.features.queues = queues;
        (tx.config, tx.wireguard) = (Arc::new(config), Some(a.device.clone()));
        read_all_and_send_batches(
            &tx,
            &table_for_recipes(true),
            &mut tx::TxState::new(&tx.config),
            usize::MAX,
        );
        assert_eq!(*line.runs.lock().unwrap(), runs);
    }
}

/// A round of handshakes with peers at these endpoints. The first sends fail with `faults`.
fn run_handshake(endpoints: &[&str], faults: Vec<i32>) -> (Arc<Counters>, Arc<FakeSocket>) {
    let counters = Arc::<Counters>::default();
    let device = Arc::new(WireGuard::new(counters.clone()));
    let mut change = device.change();
    change.set_private_key(Secret::new([1; 32]));
    for (seed, endpoint) in (2..).zip(endpoints) {
        let endpoint = Some(endpoint.parse().unwrap());
        change.set_peer(Secret::new([seed; 32]).public(), endpoint, None, 0).unwrap();
    }
    drop(change);
    let line = FakeSocket::new(false, faults);
    let handshakes = Handshakes {
        device,
        name: "flannel-wg".to_owned(),
        sockets: vec![line.clone()],
        wake: Arc::new(Wake::new().unwrap()),
    };
    handshakes.run_one_round(&mut handshakes::HandshakeState::default());
    (counters, line)
}

/// A firewall of this host refuses the device's datagrams, and no socket has the family of a third peer.
#[test]
fn unsendable_handshake_is_counted() {
    let endpoints = ["192.0.2.2:51820", "192.0.2.3:51820", "[2001:db8::4]:51820"];
    let (counters, _) = run_handshake(&endpoints, vec![libc::EPERM; 4]);
    let drops =
        [DropError::SendFailed, DropError::NoEndpoint].map(|reason| counters.sent.drops(reason));
    assert_eq!((drops, counter_value(&counters.handshakes.initiated)), ([2, 1], 0));
}

/// As the kernel does (HANDSHAKE_DSCP).
#[test]
fn handshakes_ask_for_a_better_class_than_packets() {
    let (_, line) = run_handshake(&["192.0.2.2:51820"], Vec::new());
    assert_eq!(*line.tos.lock().unwrap(), [0x88]);
    // A keepalive has the same class as packets.
    assert_eq!(crate::wireguard::tos(&[4, 0, 0, 0]), 0);
}

/// The buffer has no room for the padding.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "has room for padding"))]
fn packet_that_cannot_be_sealed_is_dropped_and_counted() {
    let (a, _b) = pair();
    let (mut tx, line) =
        build_tx_and_socket(&FakeTun::new(ALL, Vec::new(), Vec::new()), Vec::new());
    (tx.config, tx.wireguard) = (a.config.clone(), Some(a.device.clone()));
    let mut buffer = VnetHeader::default().bytes().to_vec();
    let builder = PacketBuilder::ipv4([10, 5, 1, 9], [10, 5, 2, 9], 64).udp(1000, 2000);
    builder.write(&mut buffer, &[7]).unwrap();
    let unit = Unit { slot: 0, length: buffer.len() };
    let mut state = tx::TxState::new(&tx.config);
    tx.process_and_send_batch(&mut buffer, &[unit], &table_for_recipes(true), &mut state);
    assert_eq!(tx.counters.sent.drops(DropError::Internal), 1);
    assert!(line.runs.lock().unwrap().is_empty(), "an empty packet is a keepalive");
}
