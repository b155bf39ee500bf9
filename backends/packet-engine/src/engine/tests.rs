//! If a read, write or send fails, the engine either delivers each packet that it has read, or counts the packet
//! as dropped. Lasting errors do not cause a busy loop.

use super::backlog::Backlog;
use super::io::{Device, Port};
use super::rx::{self, Rx};
use super::tx::{self, Tx};
use super::wake::Wake;
use super::*;
use crate::framing::Framing;
use crate::packet::Header;
use crate::socket::{Message, Piece, Receiver, Sender};
use crate::split::tests::{Recipe, recipe};
use crate::split::{Split, split};
use crate::table::Checks;
use crate::table::{Networks, Peer, TableSettings};
use crate::tun::Offload;
use crate::virtio::{self, Gso, VnetHeader};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use types::Addresses;
use types::problem::PortPurpose;
use types::{Coded, Detail};

mod wireguard;

const MTU: u16 = 1450;
const ALL: Offload = Offload {
    vnet: true,
    tcp: true,
    udp: true,
};

/// The scripted results of system calls, in order. After the last scripted result, all calls succeed.
type Script = Mutex<VecDeque<i32>>;

fn next(script: &Script) -> io::Result<()> {
    match script.lock().unwrap().pop_front() {
        None | Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
    }
}

struct FakeTun {
    event: EventFd,
    offload: Offload,
    reads: Mutex<VecDeque<Result<Vec<u8>, i32>>>,
    faults: Script,
    /// The successful writes.
    written: Mutex<Vec<Vec<u8>>>,
    /// Whether the device refuses GSO packets, as some kernels do.
    refuses: Mutex<bool>,
}

impl FakeTun {
    fn new(offload: Offload, reads: Vec<Result<Vec<u8>, i32>>, faults: Vec<i32>) -> Arc<Self> {
        let (reads, faults) = (Mutex::new(reads.into()), Mutex::new(faults.into()));
        Arc::new(Self {
            event: EventFd::new().unwrap(),
            offload,
            reads,
            faults,
            written: Mutex::default(),
            refuses: Mutex::new(false),
        })
    }
}

impl AsFd for FakeTun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Device for FakeTun {
    fn offload(&self) -> Offload {
        self.offload
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let next = self
            .reads
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Err(libc::EAGAIN));
        let packet = next.map_err(io::Error::from_raw_os_error)?;
        buffer[..packet.len()].copy_from_slice(&packet);
        Ok(packet.len())
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        next(&self.faults)?;
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        if *self.refuses.lock().unwrap() && VnetHeader::parse(&all).unwrap().gso != Gso::None {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.written.lock().unwrap().push(all);
        Ok(1)
    }
}

/// A fake UDP socket that returns scripted results.
struct FakeSocket {
    event: EventFd,
    faults: Script,
    /// The numbers of packets and bytes that the socket accepted.
    taken: Mutex<(usize, usize)>,
    /// The number of datagrams in each call of `send`.
    runs: Mutex<Vec<usize>>,
    /// Destinations for which the socket refuses messages of several datagrams, with the errno. A route with a
    /// smaller MTU or an IPsec policy makes the kernel refuse segmented sends.
    refuses: Mutex<Vec<(IpAddr, i32)>>,
    /// The destinations of the messages of several datagrams that the engine tried to send.
    segmented: Mutex<Vec<IpAddr>>,
    /// The TOS octets of the messages that the socket accepted.
    tos: Mutex<Vec<u8>>,
}

impl FakeSocket {
    fn new(ready: bool, faults: Vec<i32>) -> Arc<Self> {
        Arc::new(Self {
            event: EventFd::from_value(u32::from(ready)).unwrap(),
            faults: Mutex::new(faults.into()),
            taken: Mutex::default(),
            runs: Mutex::default(),
            refuses: Mutex::default(),
            segmented: Mutex::default(),
            tos: Mutex::default(),
        })
    }
}

impl AsFd for FakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Port for FakeSocket {
    fn is_ipv6(&self) -> bool {
        false
    }

    fn receive(&self, _: &mut Receiver, _: usize) -> io::Result<usize> {
        next(&self.faults)?;
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn send(
        &self,
        _: &mut Sender,
        messages: &[Message],
        pieces: &[Piece],
        _: &[u8],
        _: &[u8],
    ) -> (usize, Option<io::Error>) {
        self.runs
            .lock()
            .unwrap()
            .push(messages.iter().map(|message| message.count).sum());
        for (done, message) in messages.iter().enumerate() {
            if let Err(error) = next(&self.faults) {
                return (done, Some(error));
            }
            if message.count > 1 {
                self.segmented.lock().unwrap().push(message.to.ip());
                if let Some((_, code)) = self
                    .refuses
                    .lock()
                    .unwrap()
                    .iter()
                    .find(|(to, _)| *to == message.to.ip())
                {
                    return (done, Some(io::Error::from_raw_os_error(*code)));
                }
            }
            self.tos.lock().unwrap().push(message.tos);
            let mut taken = self.taken.lock().unwrap();
            taken.0 += message.count;
            taken.1 += pieces[message.pieces.clone()]
                .iter()
                .map(|piece| piece.len as usize)
                .sum::<usize>();
        }
        (messages.len(), None)
    }
}

fn settings(network: &str, own: &str) -> TableSettings {
    TableSettings {
        networks: Networks {
            v4: Some(network.parse().unwrap()),
            v6: None,
        },
        own: Networks {
            v4: Some(own.parse().unwrap()),
            v6: None,
        },
        checks: Checks::Strict,
        mtu: MTU,
        routed: false,
        encap_port: 8285,
        address: None,
    }
}

fn table(own: bool) -> Table {
    // The recipes' sources are the peer's and their destinations ours, or the other way round.
    let nets = [
        ("10.5.1.0/24", "fdfd:fdfd:fdfd:fdfd::/64"),
        ("10.5.2.0/24", "fcfc:fcfc:fcfc:fcfc::/64"),
    ];
    let [(peer4, peer6), (own4, own6)] = if own { nets } else { [nets[1], nets[0]] };
    let settings = TableSettings {
        networks: Networks {
            v4: Some("10.5.0.0/16".parse().unwrap()),
            v6: Some("fc00::/7".parse().unwrap()),
        },
        own: Networks {
            v4: Some(own4.parse().unwrap()),
            v6: Some(own6.parse().unwrap()),
        },
        checks: Checks::Strict,
        mtu: MTU,
        routed: false,
        encap_port: 8285,
        address: None,
    };
    let peer = Peer {
        address: "127.0.0.1:8285".parse().unwrap(),
        mac: [0; 6],
        carries_v6: true,
        outer_ecn: true,
    };
    Table::build(
        settings,
        [
            (peer4.parse().unwrap(), peer),
            (peer6.parse().unwrap(), peer),
        ],
    )
}

fn config() -> Arc<EngineConfig> {
    let features = Features {
        queues: 1,
        ..Features::offload()
    };
    Arc::new(EngineConfig {
        device: "flannel0".to_owned(),
        framing: Framing::Udp,
        port: 8285,
        spread: false,
        features,
        sources: None,
    })
}

fn rx<P: Port>(tun: &Arc<FakeTun>, socket: Arc<P>) -> Rx<FakeTun, P> {
    let (table, wake) = (
        Arc::new(ArcSwap::from_pointee(table(true))),
        Arc::new(Wake::new().unwrap()),
    );
    Rx {
        config: config(),
        queues: Arc::new([tun.clone()]),
        socket,
        table,
        wireguard: None,
        counters: Arc::default(),
        wake,
    }
}

fn tx(tun: &Arc<FakeTun>, faults: Vec<i32>) -> (Tx<FakeTun, FakeSocket>, Arc<FakeSocket>) {
    let line = FakeSocket::new(true, faults);
    let (table, wake) = (
        Arc::new(ArcSwap::from_pointee(table(false))),
        Arc::new(Wake::new().unwrap()),
    );
    (
        Tx {
            config: config(),
            tun: tun.clone(),
            sockets: vec![line.clone()],
            table,
            wireguard: None,
            counters: Arc::default(),
            wake,
        },
        line,
    )
}

/// Returns a receiving socket of the engine on loopback, and a UDP socket that sends to the receiving socket.
fn loopback() -> (Socket, UdpSocket) {
    let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = bound.local_addr().unwrap();
    let socket = Socket::inherit(bound.into(), to.ip(), to.port(), &Features::offload()).unwrap();
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    from.connect(to).unwrap();
    (socket, from)
}

/// Returns the single packets in a write.
fn packets(write: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let (head, packet) = write.split_at(if offload.vnet { virtio::LEN } else { 0 });
    let vnet = if offload.vnet {
        VnetHeader::parse(head).unwrap()
    } else {
        VnetHeader::default()
    };
    let mut packet = packet.to_vec();
    let Ok(header) = Header::parse(&packet) else {
        panic!("no packet was written")
    };
    match split(&vnet, &header, &mut packet).unwrap() {
        Split::Whole => vec![packet],
        Split::Segments(segments) => (0..segments.count())
            .map(|index| {
                let mut room = [0; 192];
                let (made, payload) = segments.header(index, &packet, &mut room).unwrap();
                [&room[..made], &packet[payload]].concat()
            })
            .collect(),
    }
}

/// An incoming datagram.
#[derive(Clone, Debug)]
enum Incoming {
    Packet(Recipe),
    Partial(Recipe),
    /// A GSO packet of the peer's kernel, and the segment size for UDP.
    Super(Recipe, usize),
    Damaged(Recipe, usize),
    Noise(Vec<u8>),
}

fn incoming() -> impl Strategy<Value = Incoming> {
    let stream = |recipe: Recipe| Recipe {
        flags: 0x10,
        ..recipe
    };
    prop_oneof![
        4 => recipe(1400).prop_map(move |recipe| Incoming::Packet(stream(recipe))),
        4 => recipe(1300).prop_map(move |recipe| Incoming::Partial(stream(recipe))),
        1 => (recipe(9000), 200usize..1300).prop_map(|(recipe, size)| Incoming::Super(recipe, size)),
        1 => (recipe(1400), any::<usize>()).prop_map(|(recipe, at)| Incoming::Damaged(recipe, at)),
        1 => vec(any::<u8>(), 0..60).prop_map(Incoming::Noise),
    ]
}

/// Sends a datagram and returns the number of packets in it.
fn send(from: &UdpSocket, came: &Incoming) -> usize {
    match came {
        Incoming::Packet(recipe) => from.send(&recipe.packet()).map(|_| 1).unwrap(),
        Incoming::Partial(recipe) => from.send(&recipe.partial()).map(|_| 1).unwrap(),
        Incoming::Super(recipe, size) => {
            let packet = recipe.partial();
            let headers = packet.len() - recipe.payload.len();
            if recipe.tcp {
                from.send(&packet).unwrap();
                // A packet within the MTU stays one packet.
                return if packet.len() > usize::from(MTU) {
                    recipe.payload.len().div_ceil(usize::from(MTU) - headers)
                } else {
                    1
                };
            }
            // The kernel reports the inner segment size as if it had coalesced datagrams.
            let size = *size;
            if packet.len() <= size {
                return from.send(&packet).map(|_| 1).unwrap();
            }
            let (iov, segment) = ([IoSlice::new(&packet)], size as u16);
            sendmsg::<()>(
                from.as_raw_fd(),
                &iov,
                &[ControlMessage::UdpGsoSegments(&segment)],
                MsgFlags::empty(),
                None,
            )
            .unwrap();
            // If only headers exceed one segment, these are two malformed datagrams.
            if recipe.payload.len() > size {
                recipe.payload.len().div_ceil(size)
            } else {
                packet.len().div_ceil(size)
            }
        }
        Incoming::Damaged(recipe, at) => {
            let mut packet = recipe.packet();
            let at = at % packet.len();
            packet[at] ^= 0x55;
            from.send(&packet).map(|_| 1).unwrap()
        }
        Incoming::Noise(bytes) => from.send(bytes).map(|_| 1).unwrap(),
    }
}

fn fault() -> impl Strategy<Value = i32> {
    let codes = [
        libc::EINVAL,
        libc::EIO,
        libc::ENOMEM,
        libc::EINTR,
        libc::EAGAIN,
        libc::EBADFD,
        libc::EMSGSIZE,
        libc::ENOBUFS,
        libc::EPERM,
    ];
    prop_oneof![3 => Just(0), 1 => proptest::sample::select(codes.to_vec()), 1 => proptest::sample::select(vec![libc::ENETUNREACH, libc::ECONNREFUSED])]
}

fn offload() -> impl Strategy<Value = Offload> {
    prop_oneof![3 => Just(ALL), 1 => Just(Offload { udp: false, ..ALL }), 1 => Just(Offload { vnet: true, ..Offload::default() }), 1 => Just(Offload::default())]
}

fn count(counter: &std::sync::atomic::AtomicU64) -> usize {
    counter.load(Relaxed) as usize
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn incoming_packets_are_delivered_or_counted(all in vec((incoming(), any::<bool>()), 1..30), faults in vec(fault(), 0..40), offload in offload()) {
        let (socket, from) = loopback();
        let unknown = UdpSocket::bind("127.0.0.2:0").unwrap();
        unknown.connect(from.peer_addr().unwrap()).unwrap();
        let tape = FakeTun::new(offload, Vec::new(), faults);
        let rx = rx(&tape, Arc::new(socket));
        let (table, mut state, mut receiver) = (rx.table.load_full(), rx::RxState::new(offload), Receiver::new(64));
        let mut read = 0;
        for (came, follows) in &all {
            read += send(&from, came);
            if *follows {
                continue;
            }
            unknown.send(&[0; 20]).unwrap();
            read += 1;
            while let Ok(count) = rx.socket.receive(&mut receiver, 64) {
                rx.batch(count, &mut receiver, &table, &mut state);
            }
        }
        while let Ok(count) = rx.socket.receive(&mut receiver, 64) {
            rx.batch(count, &mut receiver, &table, &mut state);
        }
        let counted = &rx.counters.received;
        let delivered: Vec<Vec<u8>> = tape.written.lock().unwrap().iter().flat_map(|write| packets(write, offload)).collect();
        prop_assert_eq!(count(&counted.packets), delivered.len());
        prop_assert_eq!(count(&counted.bytes), delivered.iter().map(Vec::len).sum::<usize>());
        prop_assert_eq!(read, delivered.len() + counted.all_drops() as usize, "{:?}", counted);
        // No packet made from a GSO packet exceeds the pods' MTU.
        let longest = all.iter().map(|(came, _)| if let Incoming::Packet(recipe) | Incoming::Damaged(recipe, _) = came { recipe.packet().len() } else { 0 }).max();
        prop_assert!(delivered.iter().all(|packet| packet.len() <= longest.unwrap_or(0).max(usize::from(MTU))));
    }

    #[test]
    fn outgoing_packets_are_sent_or_counted(
        all in vec(prop_oneof![
            8 => (recipe(20_000), 400usize..1380, any::<bool>()).prop_map(|(recipe, size, routed)| Ok((recipe, size, routed))),
            1 => vec(any::<u8>(), 0..60).prop_map(|noise| Err(Ok(noise))),
            1 => proptest::sample::select(vec![libc::EINVAL, libc::EFAULT, libc::EIO, libc::EBADFD]).prop_map(|code| Err(Err(code))),
        ], 1..30),
        faults in vec(fault(), 0..60),
    ) {
        let (mut read, mut errors) = (0, 0);
        let mut reads = Vec::new();
        for one in all {
            reads.push(match one {
                Ok((recipe, size, routed)) => {
                    // GSO packets to a destination in no subnet are dropped, and counted as the packets that they consist of.
                    let recipe = Recipe { payload: recipe.payload, ..recipe };
                    let count = recipe.payload.len().div_ceil(size);
                    read += count;
                    let mut packet = if count > 1 { recipe.partial() } else { recipe.packet() };
                    if !routed && !recipe.ipv6 {
                        packet[18] = 77;
                    }
                    let head = if count > 1 { recipe.vnet(size) } else { VnetHeader::default() };
                    Ok([&head.bytes()[..], &packet].concat())
                }
                Err(Ok(noise)) => {
                    read += 1;
                    Ok(noise)
                }
                Err(Err(code)) => {
                    errors += 1;
                    Err(code)
                }
            });
        }
        let tape = FakeTun::new(ALL, reads, Vec::new());
        let (tx, line) = tx(&tape, faults);
        let (table, mut state) = (tx.table.load_full(), tx::TxState::new(&tx.config));
        let (mut buffer, mut backlog, mut batch) = (vec![0; 64 * tx::SLOT], Backlog::new(64), Vec::new());
        loop {
            let error = tx.read(&mut backlog, &mut buffer);
            while !backlog.is_empty() {
                backlog.next(tx::BATCH, &mut batch);
                tx.batch(&mut buffer, &batch, &table, &mut state);
                backlog.free(&mut batch);
            }
            match error {
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Some(error) => tx.read_failed(&error, &mut Default::default()),
                None => {}
            }
        }
        let counted = &tx.counters.sent;
        let taken = *line.taken.lock().unwrap();
        prop_assert_eq!((count(&counted.packets), count(&counted.bytes)), taken);
        prop_assert_eq!(read, taken.0 + counted.all_drops() as usize, "{:?}", counted);
        prop_assert_eq!(count(&counted.errors), errors);
    }
}

/// The engine writes the packets of a flow into one queue, both merged and single packets.
#[test]
fn packets_of_a_flow_are_written_into_one_queue() {
    const FLOWS: u8 = 16;
    let (socket, from) = loopback();
    let tapes = [(); 2].map(|()| FakeTun::new(ALL, Vec::new(), Vec::new()));
    let rx = Rx {
        queues: Arc::new(tapes.clone()),
        ..rx(&tapes[0], Arc::new(socket))
    };
    let (table, mut state, mut receiver) = (
        rx.table.load_full(),
        rx::RxState::new(ALL),
        Receiver::new(64),
    );
    for round in 0..6_u16 {
        for port in 0..FLOWS {
            let recipe = Recipe {
                ipv6: false,
                tcp: false,
                sequence: 0,
                flags: 0,
                options: 0,
                id: round,
                payload: vec![7; 1000],
            };
            // One batch has single packets, and the next one has packets that merge.
            for _ in 0..=round % 2 * 2 {
                let mut packet = recipe.packet();
                packet[21] ^= port;
                // Update the checksum for the changed port (RFC 1624).
                let sum = u16::from_be_bytes([packet[26], packet[27]]);
                let changed = u32::from(!sum)
                    + u32::from(packet[21])
                    + u32::from(!u16::from(packet[21] ^ port));
                let folded = (changed & 0xffff) + (changed >> 16);
                let folded = (folded & 0xffff) + (folded >> 16);
                packet[26..28].copy_from_slice(&(!(folded as u16)).to_be_bytes());
                from.send(&packet).unwrap();
            }
        }
        while let Ok(count) = rx.socket.receive(&mut receiver, 64) {
            rx.batch(count, &mut receiver, &table, &mut state);
        }
    }
    assert_eq!(rx.counters.received.all_drops(), 0);
    let merged = count(&rx.counters.received.packets) > count(&rx.counters.received.units);
    assert!(merged, "{:?}", rx.counters.received);
    let [one, other] = tapes.map(|tape| {
        let written = tape.written.lock().unwrap();
        let ports = written.iter().flat_map(|write| packets(write, ALL));
        ports.map(|packet| packet[21]).collect::<Vec<u8>>()
    });
    assert_eq!(one.len() + other.len(), usize::from(FLOWS) * 12);
    assert!(!one.is_empty() && !other.is_empty(), "{one:?} {other:?}");
    assert!(
        one.iter().all(|port| !other.contains(port)),
        "{one:?} {other:?}"
    );
}

/// Some releases of Linux 6.1 and 6.6 refuse merged packets. The engine writes refused packets one by one,
/// and after some refusals it merges no packets.
#[test]
fn refused_merged_packets_are_written_one_by_one() {
    let (socket, from) = loopback();
    let tape = FakeTun::new(ALL, Vec::new(), Vec::new());
    *tape.refuses.lock().unwrap() = true;
    let rx = rx(&tape, Arc::new(socket));
    let (table, mut state, mut receiver) = (
        rx.table.load_full(),
        rx::RxState::new(ALL),
        Receiver::new(64),
    );
    let mut sent: Vec<Vec<u8>> = Vec::new();
    for round in 0..5 {
        for n in 0..20u32 {
            let recipe = Recipe {
                ipv6: false,
                tcp: true,
                sequence: (round * 20 + n) * 1000,
                flags: 0x10,
                options: 3,
                id: n as u16,
                payload: vec![n as u8; 1000],
            };
            sent.push(recipe.packet());
            from.send(&recipe.packet()).unwrap();
        }
        while let Ok(count) = rx.socket.receive(&mut receiver, 64) {
            rx.batch(count, &mut receiver, &table, &mut state);
        }
    }
    let bare = |packet: &[u8]| [&packet[..4], &packet[6..10], &packet[12..]].concat();
    let written: Vec<Vec<u8>> = tape
        .written
        .lock()
        .unwrap()
        .iter()
        .map(|write| bare(&write[virtio::LEN..]))
        .collect();
    assert_eq!(
        written,
        sent.iter().map(|packet| bare(packet)).collect::<Vec<_>>(),
        "all of them, in order"
    );
    assert!(!state.merges());
    assert_eq!(
        (
            count(&rx.counters.received.packets),
            rx.counters.received.all_drops()
        ),
        (100, 0)
    );
}

/// Returns the address of the peer that serves 10.5.n.0/24.
fn peer_at(n: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, n).into()
}

/// Sends a GSO packet to each of these peers, in turn. Returns the peers for which the engine passed several datagrams to the kernel at once.
fn send_super_packets(
    tx: &Tx<FakeTun, FakeSocket>,
    line: &FakeSocket,
    state: &mut tx::TxState,
    to: &[u8],
) -> Vec<IpAddr> {
    let peer = |n| Peer {
        address: (peer_at(n), 8285).into(),
        mac: [0; 6],
        carries_v6: true,
        outer_ecn: true,
    };
    let subnet = |n: u8| format!("10.5.{n}.0/24").parse().unwrap();
    let table = Table::build(
        settings("10.5.0.0/16", "10.5.1.0/24"),
        (2..100).map(|n| (subnet(n), peer(n))),
    );
    line.segmented.lock().unwrap().clear();
    for n in to {
        let recipe = Recipe {
            ipv6: false,
            tcp: true,
            sequence: 1,
            flags: 0x10,
            options: 3,
            id: 1,
            payload: vec![*n; 3000],
        };
        let mut packet = recipe.partial();
        packet[18] = *n;
        tx.tun
            .reads
            .lock()
            .unwrap()
            .push_back(Ok([&recipe.vnet(1000).bytes()[..], &packet].concat()));
        let (mut buffer, mut backlog, mut batch) = (vec![0; tx::SLOT], Backlog::new(1), Vec::new());
        tx.read(&mut backlog, &mut buffer);
        backlog.next(tx::BATCH, &mut batch);
        tx.batch(&mut buffer, &batch, &table, state);
    }
    line.segmented.lock().unwrap().clone()
}

#[test]
fn segmented_sends_continue_to_others_when_one_peer_refuses_them() {
    let (tx, line) = tx(&FakeTun::new(ALL, Vec::new(), Vec::new()), Vec::new());
    let mut state = tx::TxState::new(&tx.config);
    *line.refuses.lock().unwrap() = vec![(peer_at(2), libc::EINVAL)];
    // The refusing peer comes alone, and between others.
    let tried = send_super_packets(&tx, &line, &mut state, &[2, 2, 2, 2, 3, 2, 3]);
    assert_eq!(
        tried,
        [peer_at(2), peer_at(3), peer_at(3)],
        "the refusing peer is tried once"
    );
    assert_eq!(
        (
            count(&tx.counters.unsegmented),
            tx.counters.sent.all_drops()
        ),
        (1, 0)
    );
    assert_eq!(
        line.taken.lock().unwrap().0,
        7 * 3,
        "every datagram is sent"
    );
    // The refusal is remembered for a while, because the path may change.
    line.refuses.lock().unwrap().clear();
    assert_eq!(
        send_super_packets(&tx, &line, &mut state, &[2]),
        Vec::<IpAddr>::new()
    );
    state
        .segmenting
        .forgive(Instant::now() + refusals::REMEMBERED);
    assert_eq!(
        send_super_packets(&tx, &line, &mut state, &[2]),
        [peer_at(2)]
    );
}

#[test]
fn segmented_sends_stop_for_a_while_when_several_peers_refuse_them_and_none_accepts() {
    let (tx, line) = tx(&FakeTun::new(ALL, Vec::new(), Vec::new()), Vec::new());
    let mut state = tx::TxState::new(&tx.config);
    *line.refuses.lock().unwrap() = (2..60)
        .map(|n| (peer_at(n), [libc::EINVAL, libc::EIO][usize::from(n % 2)]))
        .collect();
    // A success in between shows that the kernel supports segmented sends.
    let tried = send_super_packets(&tx, &line, &mut state, &[2, 3, 70, 4, 5, 70, 6, 7, 70]);
    assert_eq!(tried, [2, 3, 70, 4, 5, 70, 6, 7, 70].map(peer_at));
    let tried = send_super_packets(&tx, &line, &mut state, &[8, 9, 10, 70, 11]);
    assert_eq!(
        tried,
        [8, 9, 10].map(peer_at),
        "three in a row: nobody is tried"
    );
    state
        .segmenting
        .forgive(Instant::now() + refusals::REMEMBERED);
    line.refuses.lock().unwrap().clear();
    assert_eq!(
        send_super_packets(&tx, &line, &mut state, &[2, 70]),
        [2, 70].map(peer_at)
    );
    assert_eq!(tx.counters.sent.all_drops(), 0);
}

/// Since January 2025, Linux refuses a segment that exceeds the MTU of the route (`EMSGSIZE`). Linux fragments a
/// single datagram that exceeds the MTU.
#[test]
fn segmented_sends_continue_to_others_when_paths_to_many_peers_have_a_smaller_mtu() {
    let (tx, line) = tx(&FakeTun::new(ALL, Vec::new(), Vec::new()), Vec::new());
    let mut state = tx::TxState::new(&tx.config);
    *line.refuses.lock().unwrap() = (2..8).map(|n| (peer_at(n), libc::EMSGSIZE)).collect();
    let tried = send_super_packets(&tx, &line, &mut state, &[2, 3, 4, 5, 2, 3, 4, 5, 9]);
    assert_eq!(tried, [2, 3, 4, 5, 9].map(peer_at));
}

/// If the paths of many peers refuse segmented sends, the memory for refusals is bounded, and all datagrams arrive.
#[test]
fn refused_segments_are_remembered_of_each_of_many_peers() {
    let (tx, line) = tx(&FakeTun::new(ALL, Vec::new(), Vec::new()), Vec::new());
    let mut state = tx::TxState::new(&tx.config);
    *line.refuses.lock().unwrap() = (2..90).map(|n| (peer_at(n), libc::EINVAL)).collect();
    for n in 2..90 {
        send_super_packets(&tx, &line, &mut state, &[n, 95]);
    }
    let last = send_super_packets(&tx, &line, &mut state, &[89, 88, 95, 2]);
    assert_eq!(last, [95].map(peer_at), "each is remembered");
    assert_eq!(line.taken.lock().unwrap().0, (88 * 2 + 4) * 3);
}

/// Receives 20 TCP segments that the engine can merge, and returns the number of writes to the device.
fn receive_segments(
    rx: &Rx<FakeTun, Socket>,
    from: &UdpSocket,
    state: &mut rx::RxState,
    round: u32,
) -> usize {
    let (table, mut receiver) = (rx.table.load_full(), Receiver::new(64));
    for n in 0..20u32 {
        let sequence = (round * 20 + n) * 1000;
        from.send(
            &Recipe {
                ipv6: false,
                tcp: true,
                sequence,
                flags: 0x10,
                options: 3,
                id: n as u16,
                payload: vec![7; 1000],
            }
            .packet(),
        )
        .unwrap();
    }
    let before = rx.queues[0].written.lock().unwrap().len();
    while let Ok(count) = rx.socket.receive(&mut receiver, 64) {
        rx.batch(count, &mut receiver, &table, state);
    }
    rx.queues[0].written.lock().unwrap().len() - before
}

#[test]
fn merged_writes_return_a_while_after_the_kernel_refused_them() {
    let (socket, from) = loopback();
    let tape = FakeTun::new(ALL, Vec::new(), Vec::new());
    *tape.refuses.lock().unwrap() = true;
    let rx = rx(&tape, Arc::new(socket));
    let mut state = rx::RxState::new(ALL);
    (0..5).for_each(|round| assert_eq!(receive_segments(&rx, &from, &mut state, round), 20));
    assert!(!state.merges());
    *tape.refuses.lock().unwrap() = false;
    assert_eq!(receive_segments(&rx, &from, &mut state, 5), 20);
    state.forgive(Instant::now() + refusals::REMEMBERED);
    assert!(state.merges() && receive_segments(&rx, &from, &mut state, 6) < 20);
}

#[test]
fn merged_writes_go_on_when_refusals_are_rare() {
    let (socket, from) = loopback();
    let tape = FakeTun::new(ALL, Vec::new(), Vec::new());
    let rx = rx(&tape, Arc::new(socket));
    let mut state = rx::RxState::new(ALL);
    for round in 0..8 {
        *tape.refuses.lock().unwrap() = round % 2 == 0;
        receive_segments(&rx, &from, &mut state, round);
    }
    assert!(state.merges());
    assert_eq!(
        (
            count(&rx.counters.received.packets),
            rx.counters.received.all_drops()
        ),
        (160, 0)
    );
}

/// Each address has one socket per queue. After a restart, systemd returns the sockets in the reverse order.
#[test]
fn inherited_sockets_are_known_by_their_addresses() {
    let features = Features {
        queues: 2,
        ..Features::offload()
    };
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = first.local_addr().unwrap().port();
    drop(first);
    let listen = Addresses::Both(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let stored: Vec<_> = listen
        .ips()
        .flat_map(|address| [address; 2])
        .map(|address| Socket::bind(address, port, &features).unwrap())
        .collect();
    let copies = || {
        stored
            .iter()
            .map(|socket| socket.as_fd().try_clone_to_owned().unwrap())
    };
    let orders: [Vec<OwnedFd>; 3] = [
        copies().collect(),
        copies().rev().collect(),
        copies().skip(1).chain(copies().take(1)).collect(),
    ];
    for sockets in orders {
        let config = EngineConfig {
            port,
            features,
            ..EngineConfig::clone(&config())
        };
        let mut engine = Engine::new(
            config,
            table(true),
            Inheritance {
                queues: Vec::new(),
                sockets,
            },
        );
        engine.adopt(listen);
        let families: Vec<bool> = engine
            .files()
            .1
            .iter()
            .map(|socket| socket.is_ipv6())
            .collect();
        assert_eq!(families, [false, false, true, true]);
    }
    // A socket that is bound to another address is not adopted.
    let sockets = copies()
        .take(3)
        .chain([UdpSocket::bind("127.0.0.1:0").unwrap().into()])
        .collect();
    let config = EngineConfig {
        port,
        features,
        ..EngineConfig::clone(&config())
    };
    let mut engine = Engine::new(
        config,
        table(true),
        Inheritance {
            queues: Vec::new(),
            sockets,
        },
    );
    engine.adopt(listen);
    assert!(engine.files().1.is_empty());
}

#[test]
fn port_holder_hint_depends_on_the_framing() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let refused = |framing| {
        let config = EngineConfig {
            framing,
            port,
            ..EngineConfig::clone(&config())
        };
        let error = Engine::new(config, table(true), Inheritance::default())
            .open(taken.local_addr().unwrap().ip())
            .unwrap_err();
        assert_eq!(
            (error.code(), error.detail()),
            (
                "tunnel-port-taken",
                Detail::PortTaken {
                    number: port,
                    udp: true,
                    purpose: PortPurpose::Tunnel
                }
            )
        );
        error.to_string()
    };
    let of_vxlan = refused(Framing::Vxlan {
        vni: 1,
        mac: [0; 6],
    });
    assert!(
        of_vxlan.contains("cannot bind UDP")
            && of_vxlan.contains("type vxlan")
            && of_vxlan.contains("another Port in"),
        "{of_vxlan}"
    );
    assert_eq!(refused(Framing::Udp), of_vxlan);
    let of_wireguard = refused(Framing::WireGuard);
    assert!(
        of_wireguard.contains("type wireguard") && of_wireguard.contains("another ListenPort"),
        "{of_wireguard}"
    );
    assert!(
        !of_wireguard.contains("vxlan") && !of_wireguard.contains("another Port"),
        "{of_wireguard}"
    );
}

/// Number of attempts during a lasting error: the engine counts each attempt, and the pauses grow up to 32 ms in this test.
const TRIES: usize = 8;
const PAUSES: Duration = Duration::from_millis(1 + 2 + 4 + 8 + 16 + 32);

fn unscheduled() -> Priority {
    Priority::new(Scheduling::new(Means::Nothing, 2, Arc::default()))
}

#[test]
fn an_unreadable_device_causes_no_busy_loop() {
    let tape = FakeTun::new(ALL, vec![Err(libc::EIO); TRIES], Vec::new());
    let (tx, _) = tx(&tape, Vec::new());
    let (wake, counters, begin) = (tx.wake.clone(), tx.counters.clone(), Instant::now());
    let thread = std::thread::spawn(move || tx.run(unscheduled()));
    let deadline = Instant::now() + Duration::from_secs(60);
    while count(&counters.sent.errors) < TRIES && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(begin.elapsed() >= PAUSES, "{:?}", begin.elapsed());
    wake.wake();
    thread.join().unwrap();
    assert_eq!(count(&counters.sent.errors), TRIES);
}

#[test]
fn an_unreadable_socket_causes_no_busy_loop() {
    let line = FakeSocket::new(false, vec![libc::ENETDOWN; TRIES]);
    let rx = rx(&FakeTun::new(ALL, Vec::new(), Vec::new()), line);
    let (wake, counters, begin) = (rx.wake.clone(), rx.counters.clone(), Instant::now());
    let thread = std::thread::spawn(move || rx.run(unscheduled()));
    let deadline = Instant::now() + Duration::from_secs(60);
    while count(&counters.received.errors) < TRIES && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(begin.elapsed() >= PAUSES, "{:?}", begin.elapsed());
    wake.wake();
    thread.join().unwrap();
    assert_eq!(count(&counters.received.errors), TRIES);
}
