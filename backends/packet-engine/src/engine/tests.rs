//! The engine delivers each packet that it has read, or counts it as dropped, whatever read, write or send
//! fails. A lasting error causes no busy loop.

use super::rx::{self, Rx};
use super::tx::{self, Tx};
use super::wake::Wake;
use super::*;
use crate::packet::checksum;
use crate::packet::framing::Framing;

use crate::socket::{Message, Pieces, Port, Receiver, Sender};
use crate::split::tests::{Recipe, any_packet_recipe, split_into_packets};

use crate::packet::virtio::{self, Gso, VnetHeader};
use crate::table::Checks;
use crate::table::{Networks, Peer, TableSettings};
use crate::tun::{Device, Offload};
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
use types::Detail;
use types::problem::PortPurpose;

mod encryption;

const MTU: u16 = 1450;
const ALL: Offload = Offload { vnet: true, tcp: true, udp: true };

/// The results of system calls, in order; later calls succeed.
type Script = Mutex<VecDeque<i32>>;

fn take_next_result(script: &Script) -> io::Result<()> {
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
        let next = self.reads.lock().unwrap().pop_front().unwrap_or(Err(libc::EAGAIN));
        let packet = next.map_err(io::Error::from_raw_os_error)?;
        buffer[..packet.len()].copy_from_slice(&packet);
        Ok(packet.len())
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        take_next_result(&self.faults)?;
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        if *self.refuses.lock().unwrap() && VnetHeader::parse(&all).unwrap().gso != Gso::None {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.written.lock().unwrap().push(all);
        Ok(1)
    }
}

struct FakeSocket {
    event: EventFd,
    faults: Script,
    /// Packets and bytes that the socket accepted.
    taken: Mutex<(usize, usize)>,
    /// Datagrams in each call of `send_and_count_packets`.
    runs: Mutex<Vec<usize>>,
    /// Destinations for which the socket refuses segmented sends, with the errno. A smaller MTU of the route
    /// or an IPsec policy has this effect.
    refuses: Mutex<Vec<(IpAddr, i32)>>,
    /// Destinations of segmented sends, also refused ones.
    segmented: Mutex<Vec<IpAddr>>,
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
        take_next_result(&self.faults)?;
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn send(
        &self,
        _: &mut Sender,
        messages: &[Message],
        pieces: Pieces<'_>,
    ) -> (usize, Option<io::Error>) {
        self.runs.lock().unwrap().push(messages.iter().map(|message| message.count).sum());
        for (done, message) in messages.iter().enumerate() {
            if let Err(error) = take_next_result(&self.faults) {
                return (done, Some(error));
            }
            if message.count > 1 {
                self.segmented.lock().unwrap().push(message.to.ip());
                if let Some((_, code)) =
                    self.refuses.lock().unwrap().iter().find(|(to, _)| *to == message.to.ip())
                {
                    return (done, Some(io::Error::from_raw_os_error(*code)));
                }
            }
            self.tos.lock().unwrap().push(message.tos);
            let mut taken = self.taken.lock().unwrap();
            taken.0 += message.count;
            taken.1 += pieces.all[message.pieces.clone()]
                .iter()
                .map(|piece| piece.len as usize)
                .sum::<usize>();
        }
        (messages.len(), None)
    }
}

fn table_settings(networks: Networks, own: Networks) -> TableSettings {
    TableSettings {
        networks,
        own,
        checks: Checks::Strict,
        mtu: MTU,
        routed: false,
        encap_port: 8285,
        address: None,
    }
}

fn parse_networks(v4: &str, v6: Option<&str>) -> Networks {
    Networks { v4: Some(v4.parse().unwrap()), v6: v6.map(|net| net.parse().unwrap()) }
}

/// The peer at this address of loopback.
fn loopback_peer(n: u8) -> Peer {
    Peer {
        address: (loopback_peer_address(n), 8285).into(),
        mac: [0; 6],
        carries_v6: true,
        outer_ecn: true,
    }
}

fn table_for_recipes(own: bool) -> Table {
    // The recipes' sources are the peer's and their destinations ours, or the other way round.
    let nets =
        [("10.5.1.0/24", "fdfd:fdfd:fdfd:fdfd::/64"), ("10.5.2.0/24", "fcfc:fcfc:fcfc:fcfc::/64")];
    let [(peer4, peer6), (own4, own6)] = if own { nets } else { [nets[1], nets[0]] };
    let all = parse_networks("10.5.0.0/16", Some("fc00::/7"));
    Table::build(
        table_settings(all, parse_networks(own4, Some(own6))),
        [peer4, peer6].map(|net| (net.parse().unwrap(), loopback_peer(1))),
    )
}

fn engine_config() -> Arc<EngineConfig> {
    let features = Features { queues: 1, ..Features::offload() };
    Arc::new(EngineConfig {
        device: "flannel0".to_owned(),
        framing: Framing::Udp,
        port: 8285,
        spread: false,
        features,
        sources: None,
    })
}

fn build_rx<P: Port>(tun: &Arc<FakeTun>, socket: Arc<P>) -> Rx<FakeTun, P> {
    Rx {
        config: engine_config(),
        queues: Arc::new([tun.clone()]),
        socket,
        table: Arc::new(ArcSwap::from_pointee(table_for_recipes(true))),
        encryption: None,
        counters: Arc::default(),
        wake: Arc::new(Wake::new().unwrap()),
    }
}

fn build_tx_and_socket(
    tun: &Arc<FakeTun>,
    faults: Vec<i32>,
) -> (Tx<FakeTun, FakeSocket>, Arc<FakeSocket>) {
    let line = FakeSocket::new(true, faults);
    let tx = Tx {
        config: engine_config(),
        tun: tun.clone(),
        sockets: vec![line.clone()],
        table: Arc::new(ArcSwap::from_pointee(table_for_recipes(false))),
        encryption: None,
        counters: Arc::default(),
        wake: Arc::new(Wake::new().unwrap()),
    };
    (tx, line)
}

/// Sends what the device returns now, at most `most` packets a batch, and returns the error of the last read.
fn read_all_and_send_batches<P: Port>(
    tx: &Tx<FakeTun, P>,
    table: &Table,
    state: &mut tx::TxState,
    most: usize,
) -> Option<io::Error> {
    let error = tx.read_until_full_or_error(state);
    while !state.backlog.is_empty() {
        tx.send_batch(most, table, state);
    }
    error
}

/// What the device reads for this packet: a GSO packet if the payload is longer than `size`.
fn device_frame_for_recipe(recipe: &Recipe, size: usize) -> Vec<u8> {
    let (head, packet) = if recipe.payload.len() > size {
        (recipe.gso_vnet_header(size), recipe.packet_with_partial_checksum())
    } else {
        (VnetHeader::default(), recipe.packet())
    };
    [&head.bytes()[..], &packet].concat()
}

/// An engine that receives on loopback, and a UDP socket that sends to it.
struct Receiving {
    rx: Rx<FakeTun, Socket>,
    tape: Arc<FakeTun>,
    state: rx::RxState,
    from: UdpSocket,
}

impl Receiving {
    fn new(offload: Offload, faults: Vec<i32>) -> Self {
        let tape = FakeTun::new(offload, Vec::new(), faults);
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = bound.local_addr().unwrap();
        let socket =
            Socket::inherit_if_bound_to(bound.into(), to.ip(), to.port(), &Features::offload())
                .unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.connect(to).unwrap();
        Self { rx: build_rx(&tape, Arc::new(socket)), tape, state: rx::RxState::new(offload), from }
    }

    /// Handles the datagrams that arrived.
    fn process_arrived_datagrams(&mut self) {
        let (table, mut receiver) = (self.rx.table.load_full(), Receiver::new(64));
        while let Ok(count) = self.rx.socket.receive(&mut receiver, 64) {
            self.rx.process_batch_and_count_bytes(count, &mut receiver, &table, &mut self.state);
        }
    }

    /// Receives 20 TCP segments that can be merged, and returns the number of writes to the device.
    fn send_segments_and_count_writes(&mut self, round: u32) -> usize {
        let before = self.tape.written.lock().unwrap().len();
        for n in round * 20..round * 20 + 20 {
            self.from.send(&Recipe::ipv4_tcp_segment(n * 1000, 1000).packet()).unwrap();
        }
        self.process_arrived_datagrams();
        self.tape.written.lock().unwrap().len() - before
    }

    fn set_merged_writes_refused(&self, refuses: bool) {
        *self.tape.refuses.lock().unwrap() = refuses;
    }

    /// Received and dropped packets.
    fn received_and_dropped_counts(&self) -> (usize, u64) {
        let received = &self.rx.counters.received;
        (counter_value(&received.packets), received.all_drops())
    }
}

/// The single packets in a write.
fn packets_in_write(write: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let (head, packet) = write.split_at(if offload.vnet { virtio::LEN } else { 0 });
    let vnet = VnetHeader::parse(head).unwrap_or_default();
    split_into_packets(&vnet, &mut packet.to_vec()).unwrap()
}

#[derive(Clone, Debug)]
enum Incoming {
    Packet(Recipe),
    Partial(Recipe),
    /// A GSO packet of the peer's kernel, and the segment size for UDP.
    Super(Recipe, usize),
    Damaged(Recipe, usize),
    Noise(Vec<u8>),
}

fn any_incoming_datagram() -> impl Strategy<Value = Incoming> {
    let stream = |recipe: Recipe| Recipe { flags: 0x10, ..recipe };
    prop_oneof![
        4 => any_packet_recipe(1400).prop_map(move |recipe| Incoming::Packet(stream(recipe))),
        4 => any_packet_recipe(1300).prop_map(move |recipe| Incoming::Partial(stream(recipe))),
        1 => (any_packet_recipe(9000), 200usize..1300).prop_map(|(recipe, size)| Incoming::Super(recipe, size)),
        1 => (any_packet_recipe(1400), any::<usize>()).prop_map(|(recipe, at)| Incoming::Damaged(recipe, at)),
        1 => vec(any::<u8>(), 0..60).prop_map(Incoming::Noise),
    ]
}

/// Sends a datagram, and returns the number of packets in it.
fn send_and_count_packets(from: &UdpSocket, came: &Incoming) -> usize {
    match came {
        Incoming::Packet(recipe) => from.send(&recipe.packet()).map(|_| 1).unwrap(),
        Incoming::Partial(recipe) => {
            from.send(&recipe.packet_with_partial_checksum()).map(|_| 1).unwrap()
        }
        Incoming::Super(recipe, size) => {
            let packet = recipe.packet_with_partial_checksum();
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

fn errno_or_zero() -> impl Strategy<Value = i32> {
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

fn any_offload() -> impl Strategy<Value = Offload> {
    prop_oneof![3 => Just(ALL), 1 => Just(Offload { udp: false, ..ALL }), 1 => Just(Offload { vnet: true, ..Offload::default() }), 1 => Just(Offload::default())]
}

fn counter_value(counter: &std::sync::atomic::AtomicU64) -> usize {
    counter.load(Relaxed) as usize
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn incoming_packets_are_delivered_or_counted(all in vec((any_incoming_datagram(), any::<bool>()), 1..30), faults in vec(errno_or_zero(), 0..40), offload in any_offload()) {
        let mut bed = Receiving::new(offload, faults);
        let unknown = UdpSocket::bind("127.0.0.2:0").unwrap();
        unknown.connect(bed.from.peer_addr().unwrap()).unwrap();
        let mut read = 0;
        for (came, follows) in &all {
            read += send_and_count_packets(&bed.from, came);
            if *follows {
                continue;
            }
            unknown.send(&[0; 20]).unwrap();
            read += 1;
            bed.process_arrived_datagrams();
        }
        bed.process_arrived_datagrams();
        let counted = &bed.rx.counters.received;
        let delivered: Vec<Vec<u8>> = bed.tape.written.lock().unwrap().iter().flat_map(|write| packets_in_write(write, offload)).collect();
        prop_assert_eq!(counter_value(&counted.packets), delivered.len());
        prop_assert_eq!(counter_value(&counted.bytes), delivered.iter().map(Vec::len).sum::<usize>());
        prop_assert_eq!(read, delivered.len() + counted.all_drops() as usize, "{:?}", counted);
        // No packet made from a GSO packet exceeds the pods' MTU.
        let longest = all.iter().map(|(came, _)| if let Incoming::Packet(recipe) | Incoming::Damaged(recipe, _) = came { recipe.packet().len() } else { 0 }).max();
        prop_assert!(delivered.iter().all(|packet| packet.len() <= longest.unwrap_or(0).max(usize::from(MTU))));
    }

    #[test]
    fn outgoing_packets_are_sent_or_counted(
        all in vec(prop_oneof![
            8 => (any_packet_recipe(20_000), 400usize..1380, any::<bool>()).prop_map(|(recipe, size, routed)| Ok((recipe, size, routed))),
            1 => vec(any::<u8>(), 0..60).prop_map(|noise| Err(Ok(noise))),
            1 => proptest::sample::select(vec![libc::EINVAL, libc::EFAULT, libc::EIO, libc::EBADFD]).prop_map(|code| Err(Err(code))),
        ], 1..30),
        faults in vec(errno_or_zero(), 0..60),
    ) {
        let (mut read, mut errors) = (0, 0);
        let mut reads = Vec::new();
        for one in all {
            reads.push(match one {
                Ok((recipe, size, routed)) => {
                    // GSO packets to a destination in no subnet are dropped, and counted as the packets that they consist of.
                    read += recipe.payload.len().div_ceil(size);
                    let mut packet = device_frame_for_recipe(&recipe, size);
                    if !routed && !recipe.ipv6 {
                        packet[virtio::LEN + 18] = 77;
                    }
                    Ok(packet)
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
        let (tx, line) = build_tx_and_socket(&tape, faults);
        let (table, mut state) = (tx.table.load_full(), tx::TxState::new(&tx.config));
        loop {
            match read_all_and_send_batches(&tx, &table, &mut state, tx::BATCH) {
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Some(error) => tx.count_and_log_read_error(&error, &mut Default::default()),
                None => {}
            }
        }
        let counted = &tx.counters.sent;
        let taken = *line.taken.lock().unwrap();
        prop_assert_eq!((counter_value(&counted.packets), counter_value(&counted.bytes)), taken);
        prop_assert_eq!(read, taken.0 + counted.all_drops() as usize, "{:?}", counted);
        prop_assert_eq!(counter_value(&counted.errors), errors);
    }
}

/// Merged and single packets alike.
#[test]
fn packets_of_a_flow_are_written_into_one_queue() {
    const FLOWS: u8 = 16;
    let tapes = [(); 2].map(|()| FakeTun::new(ALL, Vec::new(), Vec::new()));
    let mut bed = Receiving::new(ALL, Vec::new());
    bed.rx.queues = Arc::new(tapes.clone());
    for round in 0..6_u16 {
        for port in 0..FLOWS {
            let recipe = Recipe { tcp: false, id: round, ..Recipe::ipv4_tcp_segment(0, 1000) };
            // One batch has single packets, and the next one has packets that merge.
            for _ in 0..=round % 2 * 2 {
                let mut packet = recipe.packet();
                let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
                let sum =
                    checksum::updated_checksum(word(26), word(20), word(20) ^ u16::from(port));
                packet[21] ^= port;
                packet[26..28].copy_from_slice(&sum.to_be_bytes());
                bed.from.send(&packet).unwrap();
            }
        }
        bed.process_arrived_datagrams();
    }
    let received = &bed.rx.counters.received;
    assert!(counter_value(&received.packets) > counter_value(&received.units), "{received:?}");
    let [one, other] = tapes.map(|tape| {
        let written = tape.written.lock().unwrap();
        let ports = written.iter().flat_map(|write| packets_in_write(write, ALL));
        ports.map(|packet| packet[21]).collect::<Vec<u8>>()
    });
    assert_eq!(one.len() + other.len(), usize::from(FLOWS) * 12);
    assert!(
        !one.is_empty() && !other.is_empty() && one.iter().all(|port| !other.contains(port)),
        "{one:?} {other:?}"
    );
}

/// The address of the peer that serves 10.5.n.0/24.
fn loopback_peer_address(n: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, n).into()
}

/// An engine that sends to the peers of 10.5.2.0/24 to 10.5.99.0/24.
struct Sending {
    tx: Tx<FakeTun, FakeSocket>,
    line: Arc<FakeSocket>,
    state: tx::TxState,
}

impl Sending {
    /// `refusing` are the peers to which the kernel refuses messages of several datagrams, with the errno.
    fn new(refusing: impl IntoIterator<Item = (u8, i32)>) -> Self {
        let (tx, line) =
            build_tx_and_socket(&FakeTun::new(ALL, Vec::new(), Vec::new()), Vec::new());
        let refusing = refusing.into_iter().map(|(n, code)| (loopback_peer_address(n), code));
        line.refuses.lock().unwrap().extend(refusing);
        let state = tx::TxState::new(&tx.config);
        Self { tx, line, state }
    }

    /// Sends a GSO packet to each peer in turn. Only the peers in `tried` may get segmented sends.
    #[track_caller]
    fn send_and_check_segmented_peers(&mut self, to: &[u8], tried: &[u8]) {
        let subnet = |n: u8| format!("10.5.{n}.0/24").parse().unwrap();
        let table = Table::build(
            table_settings(
                parse_networks("10.5.0.0/16", None),
                parse_networks("10.5.1.0/24", None),
            ),
            (2..100).map(|n| (subnet(n), loopback_peer(n))),
        );
        self.line.segmented.lock().unwrap().clear();
        for n in to {
            let mut packet = device_frame_for_recipe(&Recipe::ipv4_tcp_segment(1, 3000), 1000);
            packet[virtio::LEN + 18] = *n;
            self.tx.tun.reads.lock().unwrap().push_back(Ok(packet));
            read_all_and_send_batches(&self.tx, &table, &mut self.state, tx::BATCH);
        }
        let segmented = self.line.segmented.lock().unwrap();
        assert_eq!(
            *segmented,
            tried.iter().copied().map(loopback_peer_address).collect::<Vec<_>>()
        );
        assert_eq!(self.tx.counters.sent.all_drops(), 0);
    }

    /// From now on the kernel refuses nothing, and earlier refusals have expired.
    fn end_and_expire_refusals(&mut self) {
        self.line.refuses.lock().unwrap().clear();
        self.state.segmenting.forget_expired_refusals(Instant::now() + refusals::REMEMBERED);
    }
}

#[test]
fn segmented_sends_continue_to_others_when_one_peer_refuses_them() {
    let mut bed = Sending::new([(2, libc::EINVAL)]);
    // The refusing peer comes alone, and between others. It is tried once.
    bed.send_and_check_segmented_peers(&[2, 2, 2, 2, 3, 2, 3], &[2, 3, 3]);
    assert_eq!(counter_value(&bed.tx.counters.unsegmented), 1);
    assert_eq!(bed.line.taken.lock().unwrap().0, 7 * 3, "every datagram is sent");
    // The refusal is remembered for a while, because the path may change.
    bed.line.refuses.lock().unwrap().clear();
    bed.send_and_check_segmented_peers(&[2], &[]);
    bed.end_and_expire_refusals();
    bed.send_and_check_segmented_peers(&[2], &[2]);
}

#[test]
fn segmented_sends_stop_for_a_while_when_several_peers_refuse_them_and_none_accepts() {
    let mut bed = Sending::new((2..60).map(|n| (n, [libc::EINVAL, libc::EIO][usize::from(n % 2)])));
    // A success in between shows that the kernel supports segmented sends.
    bed.send_and_check_segmented_peers(
        &[2, 3, 70, 4, 5, 70, 6, 7, 70],
        &[2, 3, 70, 4, 5, 70, 6, 7, 70],
    );
    // Three in a row: nobody is tried.
    bed.send_and_check_segmented_peers(&[8, 9, 10, 70, 11], &[8, 9, 10]);
    bed.end_and_expire_refusals();
    bed.send_and_check_segmented_peers(&[2, 70], &[2, 70]);
}

/// Since January 2025, Linux refuses a segment longer than the MTU of the route (`EMSGSIZE`); it fragments a
/// single datagram.
#[test]
fn segmented_sends_continue_to_others_when_paths_to_many_peers_have_a_smaller_mtu() {
    let mut bed = Sending::new((2..8).map(|n| (n, libc::EMSGSIZE)));
    bed.send_and_check_segmented_peers(&[2, 3, 4, 5, 2, 3, 4, 5, 9], &[2, 3, 4, 5, 9]);
}

/// The memory for refusals is bounded, and all datagrams arrive.
#[test]
fn refused_segments_are_remembered_of_each_of_many_peers() {
    let mut bed = Sending::new((2..90).map(|n| (n, libc::EINVAL)));
    for n in 2..90 {
        bed.send_and_check_segmented_peers(&[n, 95], &[n, 95]);
    }
    bed.send_and_check_segmented_peers(&[89, 88, 95, 2], &[95]);
    assert_eq!(bed.line.taken.lock().unwrap().0, (88 * 2 + 4) * 3);
}

/// Some releases of Linux 6.1 and 6.6 refuse merged packets. The engine writes them one by one, and after
/// some refusals it stops merging for a while.
#[test]
fn merged_writes_return_a_while_after_the_kernel_refused_them() {
    let mut bed = Receiving::new(ALL, Vec::new());
    bed.set_merged_writes_refused(true);
    (0..5).for_each(|round| assert_eq!(bed.send_segments_and_count_writes(round), 20));
    // Merging changes only the identification and with it the checksum.
    let bare = |packet: &[u8]| [&packet[..4], &packet[6..10], &packet[12..]].concat();
    let written: Vec<_> =
        bed.tape.written.lock().unwrap().iter().map(|write| bare(&write[virtio::LEN..])).collect();
    let sent: Vec<_> =
        (0..100).map(|n| bare(&Recipe::ipv4_tcp_segment(n * 1000, 1000).packet())).collect();
    assert_eq!(written, sent, "all of them, in order");
    assert_eq!((bed.state.has_refusals(), bed.received_and_dropped_counts()), (true, (100, 0)));
    bed.set_merged_writes_refused(false);
    assert_eq!(bed.send_segments_and_count_writes(5), 20);
    bed.state.expire_refusals_and_update_merger(Instant::now() + refusals::REMEMBERED);
    assert!(!bed.state.has_refusals() && bed.send_segments_and_count_writes(6) < 20);
}

#[test]
fn merged_writes_go_on_when_refusals_are_rare() {
    let mut bed = Receiving::new(ALL, Vec::new());
    for round in 0..8 {
        bed.set_merged_writes_refused(round % 2 == 0);
        bed.send_segments_and_count_writes(round);
    }
    assert_eq!((bed.state.has_refusals(), bed.received_and_dropped_counts()), (false, (160, 0)));
}

/// There is one socket per queue and address; systemd returns them in the reverse order.
#[test]
fn inherited_sockets_are_known_by_their_addresses() {
    let features = Features { queues: 2, ..Features::offload() };
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = first.local_addr().unwrap().port();
    drop(first);
    let listen = Addresses::Both(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let stored: Vec<_> = listen
        .ips()
        .flat_map(|address| [address; 2])
        .map(|address| Socket::bind(address, port, &features).unwrap())
        .collect();
    let copy = |index: usize| stored[index].as_fd().try_clone_to_owned().unwrap();
    // A socket that is bound to another address is not adopted.
    let other = UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let adopted = vec![false, false, true, true];
    for (sockets, families) in [
        ([0, 1, 2, 3].map(copy), adopted.clone()),
        ([3, 2, 1, 0].map(copy), adopted.clone()),
        ([1, 2, 3, 0].map(copy), adopted),
        ([copy(0), copy(1), copy(2), other], vec![]),
    ] {
        let config = EngineConfig { port, features, ..EngineConfig::clone(&engine_config()) };
        let inheritance = Inheritance { queues: Vec::new(), sockets: sockets.into() };
        let mut engine = Engine::new(config, table_for_recipes(true), inheritance);
        engine.adopt_inherited_device(listen);
        let found: Vec<bool> =
            engine.files_to_hand_over().1.iter().map(|socket| socket.is_ipv6()).collect();
        assert_eq!(found, families);
    }
}

#[test]
fn port_holder_hint_depends_on_the_framing() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (framing, kind) in [
        (Framing::Vxlan { vni: 1, mac: [0; 6] }, "type vxlan"),
        (Framing::Udp, "type vxlan"),
        (encryption::FRAMING, "type mask"),
    ] {
        let config =
            EngineConfig { framing, port: address.port(), ..EngineConfig::clone(&engine_config()) };
        let mut engine = Engine::new(config, table_for_recipes(true), Inheritance::default());
        let error = engine.open_and_start(address.ip().into()).unwrap_err();
        let detail =
            Detail::PortTaken { number: address.port(), udp: true, purpose: PortPurpose::Tunnel };
        assert_eq!((&*error.code, &error.detail), ("tunnel-port-taken", &detail));
        assert!(error.to_string().contains(kind), "{error}");
    }
}

/// Attempts during a lasting error: each is counted, and the pauses grow up to 32 ms in this test.
const TRIES: usize = 8;
const PAUSES: Duration = Duration::from_millis(1 + 2 + 4 + 8 + 16 + 32);

fn ordinary_thread_priority() -> Priority {
    Priority::new_and_raise_thread_weight(Scheduling::new(Means::Nothing, 2, Arc::default()))
}

/// Runs a thread until it has counted [`TRIES`] errors, and checks that it paused between them.
fn run_and_check_error_pauses(
    wake: &Wake,
    direction: impl Fn() -> usize,
    run: impl FnOnce() + Send,
) {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(run);
        while direction() < TRIES {
            std::thread::yield_now();
        }
        assert!(begin.elapsed() >= PAUSES, "{:?}", begin.elapsed());
        wake.signal_threads_to_end();
    });
    assert_eq!(direction(), TRIES);
}

#[test]
fn an_unreadable_device_or_socket_causes_no_busy_loop() {
    let tape = FakeTun::new(ALL, vec![Err(libc::EIO); TRIES], Vec::new());
    let (tx, _) = build_tx_and_socket(&tape, Vec::new());
    let (wake, counters) = (tx.wake.clone(), tx.counters.clone());
    run_and_check_error_pauses(
        &wake,
        || counter_value(&counters.sent.errors),
        || tx.run_until_wake_signal(ordinary_thread_priority()),
    );
    let line = FakeSocket::new(false, vec![libc::ENETDOWN; TRIES]);
    let rx = build_rx(&tape, line);
    let (wake, counters) = (rx.wake.clone(), rx.counters.clone());
    run_and_check_error_pauses(
        &wake,
        || counter_value(&counters.received.errors),
        || rx.run_until_wake_signal(ordinary_thread_priority()),
    );
}
