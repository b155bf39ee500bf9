//! The engine with an encryption that masks packets: GSO packets enter at one end and leave at another, over
//! real sockets.

use super::*;
use crate::drop_error::DropError;
use crate::encryption::{Encryption, Open, Seal, SendState, Transmit};
use crate::engine::control::ControlSender;
use crate::packet::Header;
use crate::packet::framing::Rival;
use crate::socket::endpoint::Endpoint;
use crate::verdict::Icmp;
use std::net::SocketAddr;
use std::ops::Range;

const HEAD: usize = 16;
const TAG: [u8; 16] = [0xa5; 16];
pub(super) const FRAMING: Framing = Framing::Sealed {
    overhead: HEAD + TAG.len(),
    rival: Rival { interface: "type mask", key: "" },
};
const LONGEST: usize = 1420;

/// Masks packets for a single peer, which has a session if `to` is known.
#[derive(Clone, Default)]
struct Mask {
    to: Option<Endpoint>,
    /// Waiting packets.
    parked: Vec<Vec<u8>>,
    /// The keys of the session are used up.
    exhausted: bool,
}

impl Mask {
    fn with_session(to: SocketAddr) -> Self {
        Self { to: Some(to.into()), ..Self::default() }
    }
}

impl Encryption for Mask {
    fn seal_batch(&self, gather: &mut dyn FnMut(&mut dyn Seal)) {
        gather(&mut self.clone());
    }

    fn open_batch(&self, merge: &mut dyn FnMut(&mut dyn Open)) {
        merge(&mut self.clone());
    }

    fn forget_sources(&self, _: &[Endpoint]) {}

    fn thread_name(&self) -> &'static str {
        "mask"
    }

    fn run(&self, _: &dyn Fn() -> bool, _: Transmit<'_>) {}

    fn ring(&self) {}
}

fn mask_bytes(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
}

impl Seal for Mask {
    fn select_peer(
        &mut self,
        _: &Header,
        _: &[u8],
        longest: usize,
    ) -> Result<SendState, (Option<Icmp>, DropError)> {
        if longest > LONGEST {
            return Err((Some(Icmp::TooBig(LONGEST as u16)), DropError::TooBig));
        }
        Ok(self.to.map_or(SendState::AwaitingSession, SendState::Ready))
    }

    fn place(&self, length: usize) -> Range<usize> {
        HEAD..HEAD + length.next_multiple_of(16)
    }

    fn seal(&mut self, datagram: &mut [u8]) -> bool {
        let (packet, tag) = datagram.split_last_chunk_mut().unwrap();
        *tag = TAG;
        mask_bytes(&mut packet[HEAD..]);
        !self.exhausted
    }

    fn park(&mut self, plain: &[u8]) -> usize {
        self.parked.push(plain.to_vec());
        usize::from(self.parked.len() > 2)
    }
}

impl Open for Mask {
    fn open(&mut self, datagram: &mut [u8], _: Endpoint) -> Result<Option<Header>, DropError> {
        let (packet, tag) = datagram.split_last_chunk_mut().ok_or(DropError::Short)?;
        if *tag != TAG {
            return Err(DropError::BadTag);
        }
        mask_bytes(&mut packet[HEAD..]);
        packet.copy_within(HEAD.., 0);
        Header::parse(&packet[..crate::packet::ip_total_length(packet).unwrap()]).map(Some)
    }
}

fn masked_config(queues: usize) -> Arc<EngineConfig> {
    let features = Features { queues, ..Features::offload() };
    Arc::new(EngineConfig { framing: FRAMING, features, ..EngineConfig::clone(&engine_config()) })
}

/// Sends what the device reads.
fn send_masked<P: Port>(
    reads: Vec<Vec<u8>>,
    socket: &Arc<P>,
    mask: Mask,
    queues: usize,
) -> Arc<Counters> {
    let tx = Tx {
        config: masked_config(queues),
        tun: FakeTun::new(ALL, reads.into_iter().map(Ok).collect(), Vec::new()),
        sockets: vec![socket.clone()],
        table: Arc::new(ArcSwap::from_pointee(table_for_recipes(true))),
        encryption: Some(Arc::new(mask)),
        counters: Arc::default(),
        wake: Arc::new(Wake::new().unwrap()),
    };
    let mut state = tx::TxState::new(&tx.config);
    read_all_and_send_batches(&tx, &tx.table.load(), &mut state, usize::MAX);
    tx.counters
}

/// Sends what the device reads over loopback, and receives it. `packets` is the number of packets.
fn send_and_receive(reads: Vec<Vec<u8>>, packets: usize) -> (Arc<Counters>, Receiving) {
    let mut bed = Receiving::new(ALL, Vec::new());
    bed.rx.config = masked_config(1);
    bed.rx.encryption = Some(Arc::new(Mask::default()));
    let socket =
        Arc::new(Socket::bind(Ipv4Addr::LOCALHOST.into(), 0, &Features::offload()).unwrap());
    let mask = Mask::with_session(bed.from.peer_addr().unwrap());
    let counters = send_masked(reads, &socket, mask, 1);
    wait::until("all packets arrive", || {
        bed.process_arrived_datagrams();
        bed.received_and_dropped_counts().0 >= packets
    })
    .unwrap();
    (counters, bed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_segment_arrives_as_it_was(all in vec((any_packet_recipe(20_000), 400usize..1300), 1..12)) {
        let frames: Vec<_> = all.into_iter().map(|(recipe, size)| device_frame_for_recipe(&Recipe { ipv6: false, ..recipe }, size)).collect();
        let wanted: Vec<_> = frames.iter().flat_map(|frame| packets_in_write(frame, ALL)).collect();
        let (counters, bed) = send_and_receive(frames, wanted.len());
        prop_assert_eq!((counter_value(&counters.sent.packets), counters.sent.all_drops()), (wanted.len(), 0));
        prop_assert_eq!(counter_value(&counters.sent.bytes), wanted.iter().map(|packet| packet.len().next_multiple_of(16)).sum::<usize>());
        prop_assert_eq!(bed.received_and_dropped_counts(), (wanted.len(), 0));
        let delivered: Vec<_> = bed.tape.written.lock().unwrap().iter().flat_map(|write| packets_in_write(write, ALL)).collect();
        // Flows with few bytes go first, so the order between flows is not that of sending. Merged packets get consecutive identifications, so these
        // are not compared.
        let bare = |packets: Vec<Vec<u8>>| {
            let mut bare: Vec<_> = packets.iter().map(|packet| [&packet[..4], &packet[6..10], &packet[12..]].concat()).collect();
            bare.sort();
            bare
        };
        prop_assert_eq!(bare(delivered), bare(wanted));
    }
}

fn stream_frame() -> Vec<u8> {
    device_frame_for_recipe(&Recipe::ipv4_tcp_segment(5, 1368 * 40), 1368)
}

/// Segments of equal size leave in one send and arrive in one write.
#[test]
fn a_stream_stays_together() {
    let (counters, bed) = send_and_receive(vec![stream_frame()], 40);
    for direction in [&counters.sent, &bed.rx.counters.received] {
        assert_eq!((counter_value(&direction.packets), counter_value(&direction.units)), (40, 1));
    }
    let written = bed.tape.written.lock().unwrap();
    let vnet = VnetHeader::parse(&written[0]).unwrap();
    assert_eq!((written.len(), vnet.gso, vnet.gso_size), (1, Gso::Tcp4, 1368));
    assert_eq!(written[0].len(), stream_frame().len());
}

/// With several queues, a thread seals only a few datagrams before it sends them, because other threads may
/// overtake it.
#[test]
fn few_datagrams_wait_sealed_with_several_queues() {
    let mask = Mask::with_session("192.0.2.2:51820".parse().unwrap());
    for (queues, runs) in [(1, vec![320]), (2, vec![80; 4])] {
        let line = FakeSocket::new(true, Vec::new());
        send_masked(vec![stream_frame(); 8], &line, mask.clone(), queues);
        assert_eq!(*line.runs.lock().unwrap(), runs);
    }
}

#[test]
fn each_segment_without_a_session_waits_or_is_counted() {
    let line = FakeSocket::new(true, Vec::new());
    let counters = send_masked(vec![stream_frame()], &line, Mask::default(), 1);
    assert_eq!(counters.sent.drops(DropError::NoSession), 38, "two wait");
    let long = device_frame_for_recipe(&Recipe::ipv4_tcp_segment(5, 1400 * 3), 1400);
    let counters = send_masked(vec![long], &line, Mask::default(), 1);
    assert_eq!((counters.sent.drops(DropError::TooBig), counters.sent.all_drops()), (3, 3));
    assert!(line.runs.lock().unwrap().is_empty());
}

#[test]
fn packet_that_cannot_be_sealed_is_dropped_and_counted() {
    let line = FakeSocket::new(true, Vec::new());
    let mask = Mask::with_session("192.0.2.2:51820".parse().unwrap());
    let counters = send_masked(vec![stream_frame()], &line, Mask { exhausted: true, ..mask }, 1);
    assert_eq!((counters.sent.drops(DropError::NoSession), counters.sent.all_drops()), (40, 40));
    assert!(line.runs.lock().unwrap().is_empty());
}

/// A firewall of this host refuses two datagrams, and no socket has the family of a third one's peer.
#[test]
fn datagram_beside_packets_is_tried_twice_and_keeps_its_class() {
    let line = FakeSocket::new(false, vec![libc::EPERM; 4]);
    let mut control = ControlSender::new("flannel0".to_owned(), vec![line.clone()]);
    let sent = ["192.0.2.2:51820", "192.0.2.3:51820", "[2001:db8::4]:51820", "192.0.2.2:51820"]
        .map(|to| control.send(to.parse::<SocketAddr>().unwrap().into(), &[1; 148], 0x88));
    let [failed, lost] = [DropError::SendFailed, DropError::NoEndpoint].map(Err);
    assert_eq!(sent, [failed, failed, lost, Ok(())]);
    assert_eq!(*line.tos.lock().unwrap(), [0x88]);
}
