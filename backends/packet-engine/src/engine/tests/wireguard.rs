//! Tests of the engine with WireGuard: GSO packets enter at one node and leave at another node, over real sockets.

use super::*;
use crate::engine::handshakes::{self, Handshakes};
use crate::reason::Reason;
use crate::wireguard::{Device as WireGuard, Secret, Worker};
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
        let socket = Socket::inherit(
            bound.into(),
            address.ip(),
            address.port(),
            &Features::offload(),
        )
        .unwrap();
        let counters = Arc::<Counters>::default();
        let device = Arc::new(WireGuard::new(counters.clone()));
        let mut change = device.change();
        change.set_private_key(Secret::new([seed; 32]));
        change.set_mtu(1420);
        drop(change);
        let config = Arc::new(EngineConfig {
            framing: Framing::WireGuard,
            ..EngineConfig::clone(&config())
        });
        let (tun, socket) = (FakeTun::new(ALL, Vec::new(), Vec::new()), Arc::new(socket));
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

    fn meets(&self, other: &End, allowed: &[&str]) {
        let mut change = self.device.change();
        let key = other.device.public_key().unwrap();
        change.set_peer(key, Some(other.address), None, 0).unwrap();
        allowed
            .iter()
            .for_each(|net| change.set_allowed_ip(net.parse().unwrap(), key).unwrap());
    }

    /// Sends the packets that wait in the device, handles handshakes, and receives the datagrams that arrived.
    fn turn(&mut self) {
        let (table, wake) = (
            Arc::new(ArcSwap::from_pointee(table(true))),
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
        let (mut buffer, mut backlog) = (vec![0; 64 * tx::SLOT], Backlog::new(64));
        let mut batch = Vec::new();
        tx.read(&mut backlog, &mut buffer);
        backlog.next(usize::MAX, &mut batch);
        if !batch.is_empty() {
            tx.batch(
                &mut buffer,
                &batch,
                &table.load(),
                &mut tx::TxState::new(&self.config),
            );
        }
        let Self {
            device,
            worker,
            sender,
            socket,
            ..
        } = self;
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
            sender.send(
                socket,
                &[message],
                &[Piece {
                    made: true,
                    at: 0,
                    len: datagram.len() as u32,
                }],
                datagram,
                &[],
            );
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
            rx.batch(count, &mut self.receiver, &table.load(), &mut state);
        }
    }

    fn delivered(&self) -> Vec<Vec<u8>> {
        self.tun
            .written
            .lock()
            .unwrap()
            .iter()
            .flat_map(|write| packets(write, ALL))
            .collect()
    }
}

fn pair() -> (End, End) {
    let (mut a, mut b) = (End::new(1), End::new(2));
    a.meets(
        &b,
        &[
            "10.5.2.0/24",
            "fdfd:fdfd:fdfd:fdfd::/64",
            "fcfc:fcfc:fcfc:fcfc::/64",
        ],
    );
    b.meets(
        &a,
        &[
            "10.5.1.0/24",
            "fdfd:fdfd:fdfd:fdfd::/64",
            "fcfc:fcfc:fcfc:fcfc::/64",
        ],
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while (count(&a.counters.handshakes.completed) == 0
        || count(&b.counters.handshakes.completed) == 0)
        && Instant::now() < deadline
    {
        a.turn();
        b.turn();
    }
    (a, b)
}

/// Returns the segments of the test packet that `recipe` describes, with at most `size` bytes of payload each.
fn segments(recipe: &Recipe, size: usize) -> Vec<Vec<u8>> {
    let packet = if recipe.payload.len() > size {
        recipe.partial()
    } else {
        recipe.packet()
    };
    let head = if recipe.payload.len() > size {
        recipe.vnet(size)
    } else {
        VnetHeader::default()
    };
    packets(&[&head.bytes()[..], &packet].concat(), ALL)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_segment_arrives_as_it_was(all in vec((recipe(20_000), 400usize..1300), 1..12)) {
        let (mut a, mut b) = pair();
        let all: Vec<(Recipe, usize)> = all.into_iter().map(|(recipe, size)| (Recipe { ipv6: false, ..recipe }, size)).collect();
        let mut wanted = Vec::new();
        for (recipe, size) in &all {
            wanted.extend(segments(recipe, *size));
            let super_packet = recipe.payload.len() > *size;
            let packet = if super_packet { recipe.partial() } else { recipe.packet() };
            let head = if super_packet { recipe.vnet(*size) } else { VnetHeader::default() };
            a.tun.reads.lock().unwrap().push_back(Ok([&head.bytes()[..], &packet].concat()));
        }
        a.turn();
        prop_assert_eq!((count(&a.counters.sent.packets), a.counters.sent.all_drops()), (wanted.len() as u64 as usize, 0));
        let deadline = Instant::now() + Duration::from_secs(60);
        while count(&b.counters.received.packets) < wanted.len() && Instant::now() < deadline {
            b.turn();
        }
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

/// The endpoint of one peer is inside the allowed IPs of another peer. An operator's mistake, or a pod network that
/// contains the nodes' addresses, causes this overlap of endpoint and allowed IPs.
#[test]
fn datagrams_to_a_peer_are_dropped_in_the_tunnel_and_other_packets_to_it_pass() {
    let (mut a, mut b) = pair();
    for (end, other) in [(&a, b.address), (&b, a.address)] {
        let key = end.device.peers()[0].key;
        let mut change = end.device.change();
        change
            .set_peer(
                Secret::new([9; 32]).public(),
                Some("192.0.2.7:51820".parse().unwrap()),
                None,
                0,
            )
            .unwrap();
        change
            .set_peer(
                Secret::new([8; 32]).public(),
                Some("[2001:db8::7]:51821".parse().unwrap()),
                None,
                0,
            )
            .unwrap();
        ["192.0.2.0/24", "2001:db8::/64", "10.5.7.0/24"]
            .iter()
            .for_each(|net| change.set_allowed_ip(net.parse().unwrap(), key).unwrap());
        change.set_peer(key, Some(other), None, 0).unwrap();
    }
    let send = |end: &mut End, to: &str, port: u16| {
        let (source, to): (IpAddr, IpAddr) = (
            if to.contains(':') {
                "2001:db8::9"
            } else {
                "10.5.7.1"
            }
            .parse()
            .unwrap(),
            to.parse().unwrap(),
        );
        let packet = udp(source, to, port);
        end.tun
            .reads
            .lock()
            .unwrap()
            .push_back(Ok([&VnetHeader::default().bytes()[..], &packet].concat()));
        let loops = end.counters.sent.drops(Reason::Loop);
        end.turn();
        end.counters.sent.drops(Reason::Loop) - loops
    };
    assert_eq!(send(&mut a, "192.0.2.7", 51820), 1);
    assert_eq!(send(&mut a, "2001:db8::7", 51821), 1);
    // Packets to other ports or addresses pass, and so do tunnels between pods.
    for (to, port) in [
        ("192.0.2.7", 51821),
        ("192.0.2.8", 51820),
        ("2001:db8::7", 51820),
        ("10.5.7.9", 51820),
    ] {
        assert_eq!(send(&mut a, to, port), 0, "{to} {port}");
    }
    // A peer without this check may send such a datagram. It is not forwarded to another peer.
    let key = Secret::new([9; 32]).public();
    b.device.change().remove_peer(&key);
    assert_eq!(send(&mut b, "192.0.2.7", 51820), 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while a.counters.received.drops(Reason::Loop) == 0 && Instant::now() < deadline {
        a.turn();
    }
    assert_eq!(a.counters.received.drops(Reason::Loop), 1);
}

fn udp(source: IpAddr, to: IpAddr, port: u16) -> Vec<u8> {
    let mut packet = match (source, to) {
        (IpAddr::V4(source), IpAddr::V4(to)) => [
            &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0][..],
            &source.octets(),
            &to.octets(),
        ]
        .concat(),
        (IpAddr::V6(source), IpAddr::V6(to)) => [
            &[0x60, 0, 0, 0, 0, 8, 17, 64][..],
            &source.octets(),
            &to.octets(),
        ]
        .concat(),
        _ => Vec::new(),
    };
    packet.extend([0x20, 0]);
    packet.extend(port.to_be_bytes());
    packet.extend([0, 8, 0, 0]);
    packet
}

/// Segments of equal size leave in one send, and the receiving engine delivers the segments in one write.
#[test]
fn a_stream_stays_together() {
    let (mut a, mut b) = pair();
    let recipe = Recipe {
        ipv6: false,
        tcp: true,
        sequence: 5,
        flags: 0x10,
        options: 3,
        id: 9,
        payload: vec![7; 1368 * 40],
    };
    a.tun.reads.lock().unwrap().push_back(Ok(
        [&recipe.vnet(1368).bytes()[..], &recipe.partial()].concat()
    ));
    let before = count(&a.counters.sent.units);
    a.turn();
    assert_eq!(
        (
            count(&a.counters.sent.packets),
            count(&a.counters.sent.units) - before
        ),
        (40, 1)
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while count(&b.counters.received.packets) < 40 && Instant::now() < deadline {
        b.turn();
    }
    assert_eq!(
        (
            count(&b.counters.received.packets),
            count(&b.counters.received.units)
        ),
        (40, 1)
    );
    let written = b.tun.written.lock().unwrap();
    let vnet = VnetHeader::parse(&written[0]).unwrap();
    assert_eq!(
        (written.len(), vnet.gso, vnet.gso_size),
        (1, Gso::Tcp4, 1368)
    );
    assert_eq!(written[0][virtio::LEN..].len(), recipe.partial().len());
}

/// If the device has several queues, a thread seals only a few datagrams before it sends them, because other threads may overtake it.
#[test]
fn few_datagrams_wait_sealed_with_several_queues() {
    let (a, _b) = pair();
    let recipe = Recipe {
        ipv6: false,
        tcp: true,
        sequence: 5,
        flags: 0x10,
        options: 3,
        id: 9,
        payload: vec![7; 1368 * 40],
    };
    for (queues, runs) in [(1, vec![320]), (2, vec![80; 4])] {
        let reads = vec![Ok([&recipe.vnet(1368).bytes()[..], &recipe.partial()].concat()); 8];
        let line = FakeSocket::new(false, Vec::new());
        let tx = Tx {
            config: Arc::new(EngineConfig {
                features: Features {
                    queues,
                    ..a.config.features
                },
                ..EngineConfig::clone(&a.config)
            }),
            tun: FakeTun::new(ALL, reads, Vec::new()),
            sockets: vec![line.clone()],
            table: Arc::new(ArcSwap::from_pointee(table(true))),
            wireguard: Some(a.device.clone()),
            counters: Arc::default(),
            wake: Arc::new(Wake::new().unwrap()),
        };
        let (mut buffer, mut backlog) = (vec![0; 64 * tx::SLOT], Backlog::new(64));
        let mut batch = Vec::new();
        tx.read(&mut backlog, &mut buffer);
        backlog.next(usize::MAX, &mut batch);
        tx.batch(
            &mut buffer,
            &batch,
            &tx.table.load(),
            &mut tx::TxState::new(&tx.config),
        );
        assert_eq!(*line.runs.lock().unwrap(), runs);
    }
}

/// Records the texts of log events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field} {value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A firewall of this host refuses the device's datagrams. The engine counts each failure and logs a single line.
#[test]
fn unsendable_handshake_is_logged_and_counted() {
    let counters = Arc::<Counters>::default();
    let device = Arc::new(WireGuard::new(counters.clone()));
    let mut change = device.change();
    change.set_private_key(Secret::new([1; 32]));
    for (seed, endpoint) in [
        (2, "192.0.2.2:51820"),
        (3, "192.0.2.3:51820"),
        (4, "[2001:db8::4]:51820"),
    ] {
        change
            .set_peer(
                Secret::new([seed; 32]).public(),
                Some(endpoint.parse().unwrap()),
                None,
                0,
            )
            .unwrap();
    }
    drop(change);
    let line = FakeSocket::new(false, vec![libc::EPERM; 4]);
    let handshakes = Handshakes {
        device,
        name: "flannel-wg".to_owned(),
        sockets: vec![line],
        wake: Arc::new(Wake::new().unwrap()),
    };
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        handshakes.round(&mut handshakes::HandshakeState::default())
    });
    let log = log.0.lock().unwrap();
    assert!(
        log.len() == 1
            && [
                "cannot send a handshake",
                "address 192.0.2.2:51820",
                "error Operation not permitted",
            ]
            .iter()
            .all(|part| log[0].contains(part)),
        "{log:?}"
    );
    let drops = |reason| counters.sent.drops(reason);
    assert_eq!(
        (
            drops(Reason::SendFailed),
            drops(Reason::NoEndpoint),
            count(&counters.handshakes.initiated)
        ),
        (2, 1, 0)
    );
}

/// The WireGuard device sends handshakes with a higher DSCP than packets, as the kernel does (HANDSHAKE_DSCP).
#[test]
fn handshakes_ask_for_a_better_class_than_packets() {
    let device = Arc::new(WireGuard::new(Arc::default()));
    let mut change = device.change();
    change.set_private_key(Secret::new([1; 32]));
    change
        .set_peer(
            Secret::new([2; 32]).public(),
            Some("192.0.2.2:51820".parse().unwrap()),
            None,
            0,
        )
        .unwrap();
    drop(change);
    let line = FakeSocket::new(false, Vec::new());
    let handshakes = Handshakes {
        device,
        name: "flannel-wg".to_owned(),
        sockets: vec![line.clone()],
        wake: Arc::new(Wake::new().unwrap()),
    };
    handshakes.round(&mut handshakes::HandshakeState::default());
    assert_eq!(*line.tos.lock().unwrap(), [0x88]);
    // A keepalive has the same class as packets.
    assert_eq!(crate::wireguard::tos(&[4, 0, 0, 0]), 0);
}
