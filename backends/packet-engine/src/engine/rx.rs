//! Receiving side: receives datagrams, checks each packet, merges packets and writes them to the TUN device.

use super::config::EngineConfig;
use super::log_limit::LogLimit;
use super::priority::Priority;
use super::read_backoff::ReadBackoff;
use super::refusals::{Offload, REMEMBERED};
use super::wake::Wake;
use crate::counters::{Counters, add_to_counter};
use crate::drop_error::DropError;
use crate::encryption::{Encryption, Open};
use crate::flow;
use crate::flow::messages::Messages;
use crate::merge::{Group, Merger, SEGMENTS};
use crate::packet::virtio::{Gso, VnetHeader};
use crate::packet::{Header, ip_total_length};
use crate::packet::{ecn, partial_checksum};
use crate::socket::{Port, Receiver, RecvMeta, Socket};
use crate::split::{HEADERS, plan_split_or_complete_checksum};
use crate::table::{Checks, Table, TableSettings};
use crate::tun::{self, Device, Tun};
use crate::verdict::judge_inbound_packet;
use arc_swap::ArcSwap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tracing::field::display;

/// Maximum number of receive buffers per call while each holds many datagrams. More would not fit into the
/// CPU cache.
const GATHERED: usize = 8;
/// Average size in bytes from which a receive buffer is taken to hold many datagrams.
const LONG: usize = 8192;

/// The receiving side of one queue; runs in a thread.
pub(super) struct Rx<D = Tun, P = Socket> {
    pub config: Arc<EngineConfig>,
    /// All queues of the device. The kernel gives the replies of a flow to the queue into which the engine
    /// wrote its packets (tun_flow_update). All datagrams of a peer arrive at one socket. With one queue for
    /// them, one thread would send everything to this peer. So a packet goes into the queue of its flow.
    pub queues: Arc<[Arc<D>]>,
    pub socket: Arc<P>,
    pub table: Arc<ArcSwap<Table>>,
    /// Used instead of the forwarding table.
    pub encryption: Option<Arc<dyn Encryption>>,
    pub counters: Arc<Counters>,
    pub wake: Arc<Wake>,
}

/// What a thread keeps between batches.
pub(super) struct RxState {
    merger: Merger,
    messages: Messages,
    log: LogLimit,
    writes: Writes,
}

/// What a thread writes to the device.
struct Writes {
    /// GSO packets.
    tcp: Offload,
    udp: Offload,
    /// A merged packet in one piece, before it is split again.
    scratch: Vec<u8>,
    log: LogLimit,
    /// Written in this batch. A unit is a GSO packet or a single packet.
    packets: usize,
    bytes: usize,
    units: usize,
}

impl Writes {
    fn add(&mut self, packets: usize, bytes: usize) {
        self.packets += packets;
        self.bytes += bytes;
        self.units += 1;
    }

    /// `None` for a single packet.
    #[inline]
    fn offload(&mut self, kind: Gso) -> Option<&mut Offload> {
        match kind {
            Gso::None => None,
            Gso::Tcp4 | Gso::Tcp6 => Some(&mut self.tcp),
            Gso::Udp => Some(&mut self.udp),
        }
    }
}

impl RxState {
    pub(super) fn new(granted: tun::Offload) -> Self {
        Self {
            merger: Merger::new(granted.tcp, granted.udp),
            messages: Messages::new(),
            log: LogLimit::default(),
            writes: Writes {
                tcp: Offload::new(granted.tcp),
                udp: Offload::new(granted.udp),
                scratch: Vec::new(),
                log: LogLimit::default(),
                packets: 0,
                bytes: 0,
                units: 0,
            },
        }
    }

    /// Whether the kernel refuses the GSO packets of TCP or of UDP.
    #[inline]
    pub(super) fn has_refusals(&self) -> bool {
        self.writes.tcp.is_refused() || self.writes.udp.is_refused()
    }

    #[cold]
    pub(super) fn expire_refusals_and_update_merger(&mut self, now: Instant) {
        let Writes { tcp, udp, .. } = &mut self.writes;
        tcp.enable_if_refusal_expired(now);
        udp.enable_if_refusal_expired(now);
        self.merger.set_merged_protocols(tcp.is_on(), udp.is_on());
    }
}

impl<D: Device, P: Port> Rx<D, P> {
    /// Runs until the wake signal.
    pub(super) fn run_until_wake_signal(self, mut priority: Priority) {
        let features = self.config.features;
        let mut receiver = Receiver::new(features.batch);
        let mut most = features.batch;
        let granted = self.queues.first().map(|queue| queue.offload());
        let mut state = RxState::new(granted.unwrap_or_default());
        if self.encryption.is_some() {
            state.merger.trust_checksums();
        }
        let mut backoff = ReadBackoff::default();
        let mut table = arc_swap::Cache::new(&*self.table);
        while !self.wake.is_end_signaled() {
            match self.socket.receive(&mut receiver, most) {
                Ok(count) => {
                    backoff.reset_after_success();
                    let bytes = self.process_batch_and_count_bytes(
                        count,
                        &mut receiver,
                        table.load(),
                        &mut state,
                    );
                    // With small packets, or with a kernel without GRO, receive more at once.
                    most = if bytes / count.max(1) >= LONG {
                        GATHERED.min(features.batch)
                    } else {
                        features.batch
                    };
                    priority.adjust_after_batch(state.messages.count());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    backoff.wait_for_data_or_wake(&*self.socket, &self.wake);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    add_to_counter(&self.counters.received.errors, 1);
                    if let Some(times) = state.log.count_and_take_if_due("receive", 1) {
                        tracing::warn!(
                            device = %self.config.device,
                            port = self.config.port,
                            error = %error,
                            count = times,
                            "cannot receive from the UDP port, retrying"
                        );
                    }
                    backoff.pause_after_failure(&self.wake);
                }
            }
        }
    }

    /// Handles a batch and returns its size in bytes.
    pub(super) fn process_batch_and_count_bytes(
        &self,
        count: usize,
        receiver: &mut Receiver,
        table: &Table,
        state: &mut RxState,
    ) -> usize {
        add_to_counter(&self.counters.received.batches, 1);
        if state.has_refusals() {
            state.expire_refusals_and_update_merger(Instant::now());
        }
        state.merger.clear();
        state.messages.begin_batch(Instant::now());
        let mut bytes = 0;
        match &self.encryption {
            None => {
                bytes = self.merge_batch(count, receiver, state, |meta, buffer, state| {
                    self.check_and_merge_datagrams(meta, buffer, table, state);
                });
            }
            Some(encryption) => encryption.open_batch(&mut |open| {
                bytes = self.merge_batch(count, receiver, state, |meta, buffer, state| {
                    self.decrypt_and_merge_datagrams(meta, buffer, open, state);
                });
            }),
        }
        self.write_all_groups(receiver.buffer(), state);
        bytes
    }

    /// Hands each receive buffer to `merge`, and returns the bytes in all of them.
    fn merge_batch(
        &self,
        count: usize,
        receiver: &mut Receiver,
        state: &mut RxState,
        mut merge: impl FnMut(&RecvMeta, &mut [u8], &mut RxState),
    ) -> usize {
        let mut bytes = 0;
        for index in 0..count {
            let Some(meta) = receiver.meta(index) else {
                // The sender has no IP address.
                self.counters.received.count_dropped_packet(DropError::Malformed);
                continue;
            };
            bytes += meta.at.len();
            if meta.truncated {
                self.count_and_log_dropped_buffer(DropError::Truncated, &meta, state);
            } else {
                merge(&meta, receiver.buffer(), state);
            }
        }
        bytes
    }

    /// Checks all datagrams of a receive buffer and merges the accepted packets.
    fn check_and_merge_datagrams(
        &self,
        meta: &RecvMeta,
        buffer: &mut [u8],
        table: &Table,
        state: &mut RxState,
    ) {
        let TableSettings { checks, mtu, .. } = table.settings;
        // Datagrams from unknown senders are not inspected at all.
        if checks != Checks::Off && !table.is_peer_address(meta.from.ip()) {
            return self.count_and_log_dropped_buffer(DropError::UnknownPeer, meta, state);
        }
        let gathered = meta.at.len() > meta.segment && self.holds_udp_gso_packet(meta, buffer);
        let step = if gathered { meta.at.len() } else { meta.segment };
        for place in meta.datagrams(step) {
            match self.decapsulate_and_check_packet(place.clone(), meta, buffer, table) {
                Ok((at, header)) => {
                    let packet = buffer.get(at.clone()).unwrap_or_default();
                    // A single datagram may hold a GSO packet of the sender's kernel.
                    let size = if gathered {
                        Some(meta.segment)
                    } else {
                        partial_checksum::tcp_gso_segment_size(packet, &header, mtu)
                    };
                    match size {
                        Some(size) => state.merger.add_gso_packet(buffer, at, &header, size),
                        None => state.merger.merge_or_add_packet(buffer, at, &header),
                    }
                }
                Err(reason) => self.count_and_log_dropped(
                    reason,
                    meta.from.ip(),
                    1,
                    &mut state.log,
                    buffer.get(place).unwrap_or_default(),
                ),
            }
        }
    }

    /// Opens all datagrams of a receive buffer and merges the accepted packets.
    fn decrypt_and_merge_datagrams(
        &self,
        meta: &RecvMeta,
        buffer: &mut [u8],
        open: &mut dyn Open,
        state: &mut RxState,
    ) {
        for place in meta.datagrams(meta.segment) {
            let datagram = buffer.get_mut(place.clone()).unwrap_or_default();
            let opened = open.open(datagram, meta.from).and_then(|header| {
                if let Some(header) = &header {
                    ecn::copy_congestion_mark(datagram, header.tos, meta.ecn)?;
                }
                Ok(header)
            });
            match opened {
                Ok(Some(header)) => {
                    let packet = place.start..place.start + header.total_len;
                    state.merger.merge_or_add_packet(buffer, packet, &header);
                }
                Ok(None) => {}
                Err(reason) => {
                    // The log shows addresses only of spoofed packets. Most other dropped datagrams were not opened.
                    let shown = if reason == DropError::Spoofed { &*datagram } else { &[] };
                    self.count_and_log_dropped(reason, meta.from.ip(), 1, &mut state.log, shown);
                }
            }
        }
    }

    /// Whether the datagrams in a receive buffer are in fact one, which contains a UDP GSO packet of the
    /// sender.
    fn holds_udp_gso_packet(&self, meta: &RecvMeta, buffer: &[u8]) -> bool {
        let datagram = buffer.get(meta.at.clone()).unwrap_or_default();
        let packet = self.config.framing.strip(datagram).ok().and_then(|at| datagram.get(at));
        packet
            .filter(|packet| packet.len() + self.config.framing.overhead() == datagram.len())
            .is_some_and(|packet| {
                Header::parse(packet).is_ok_and(|header| {
                    partial_checksum::may_be_udp_gso_packet(packet, &header, meta.segment)
                })
            })
    }

    /// Finds the packet in a datagram, or the reason to drop it. Sets the packet's ECN field too.
    #[inline]
    fn decapsulate_and_check_packet(
        &self,
        at: Range<usize>,
        meta: &RecvMeta,
        buffer: &mut [u8],
        table: &Table,
    ) -> Result<(Range<usize>, Header), DropError> {
        let datagram = buffer.get_mut(at.clone()).ok_or(DropError::Short)?;
        let inner = self.config.framing.strip(datagram)?;
        let packet = datagram.get_mut(inner.clone()).ok_or(DropError::Short)?;
        let header = Header::parse(packet)?;
        judge_inbound_packet(&header, packet, meta.from.ip(), table)?;
        ecn::copy_congestion_mark(packet, header.tos, meta.ecn)?;
        Ok((at.start + inner.start..at.start + inner.end, header))
    }

    fn write_all_groups(&self, buffer: &mut [u8], state: &mut RxState) {
        let RxState { merger, messages, writes, .. } = state;
        for group in merger.groups_small_flows_first() {
            let first = buffer.get(group.first.clone()).unwrap_or_default();
            messages.classify_and_count_unit(first, &group.header, group.bytes_as_single_packets());
            let number = flow::flow_queue_number(group.hash, self.queues.len());
            let Some(queue) = self.queues.get(number) else {
                continue;
            };
            let Some(vnet) = group.finish_headers(buffer) else {
                self.counters.received.count_internal_error(
                    "a group is of the buffer that is written",
                    group.count(),
                );
                continue;
            };
            self.write_group_whole_or_split(queue, group, &vnet, buffer, writes);
        }
        let received = &self.counters.received;
        add_to_counter(&received.packets, std::mem::take(&mut writes.packets));
        add_to_counter(&received.bytes, std::mem::take(&mut writes.bytes));
        add_to_counter(&received.units, std::mem::take(&mut writes.units));
    }

    /// Writes a group as a whole, or packet by packet if the kernel does not accept it.
    fn write_group_whole_or_split(
        &self,
        queue: &D,
        group: &Group,
        vnet: &VnetHeader,
        buffer: &mut [u8],
        writes: &mut Writes,
    ) {
        let (count, kind) = (group.count(), group.kind());
        let taken = match writes.offload(kind) {
            None => !vnet.needs_csum || queue.offload().vnet,
            Some(merged) => merged.is_on(),
        };
        let mut refused = false;
        if taken {
            let Err(error) = write_packet(
                queue,
                vnet,
                group.ranges().filter_map(|range| buffer.get(range.clone())),
            ) else {
                writes.add(count, group.bytes_as_single_packets());
                return writes.offload(kind).into_iter().for_each(Offload::record_success);
            };
            // EINVAL: the kernel refused the offload. ENOMEM: the kernel refused to allocate so much memory at once.
            refused = error.raw_os_error() == Some(libc::EINVAL);
            if !vnet.needs_csum || !(refused || error.raw_os_error() == Some(libc::ENOMEM)) {
                return self.count_and_log_lost(&error, count, &mut writes.log);
            }
        }
        let lost = match (group.rest.is_empty(), buffer.get_mut(group.first.clone())) {
            (true, Some(packet)) => {
                self.split_write_and_count_lost(queue, packet, vnet, count, writes)
            }
            _ => {
                let mut whole = std::mem::take(&mut writes.scratch);
                whole.clear();
                group
                    .ranges()
                    .filter_map(|range| buffer.get(range.clone()))
                    .for_each(|slice| whole.extend_from_slice(slice));
                let lost = self.split_write_and_count_lost(queue, &mut whole, vnet, count, writes);
                writes.scratch = whole;
                lost
            }
        };
        // The kernel refused a GSO packet but accepted its single packets.
        if refused
            && lost == 0
            && let Some(merged) = writes.offload(kind)
            && merged.count_refusal_toward_disabling(Instant::now())
            && let Some(times) = writes.log.count_and_take_if_due("merged", 1)
        {
            tracing::warn!(
                device = %self.config.device,
                seconds = REMEMBERED.as_secs(),
                count = times,
                "the kernel refuses merged packets; writing packets one by one for now"
            );
        }
    }

    /// Completes the checksum of a packet that the kernel does not accept as it is, splits it, and writes the
    /// single packets. Returns how many were lost.
    fn split_write_and_count_lost(
        &self,
        queue: &D,
        packet: &mut [u8],
        vnet: &VnetHeader,
        count: usize,
        writes: &mut Writes,
    ) -> usize {
        let plain = VnetHeader::default();
        let done = Header::parse(packet)
            .and_then(|header| plan_split_or_complete_checksum(vnet, &header, packet));
        let segments = match done {
            Ok(segments) => segments,
            Err(reason) => {
                self.counters.received.count_dropped_packets(reason, count);
                return count;
            }
        };
        let mut lost = 0;
        for index in 0..segments.count {
            let mut room = [0; HEADERS];
            let made = segments.write_headers(index, packet, &mut room);
            let parts =
                made.and_then(|(own, payload)| Some((room.get(..own)?, packet.get(payload)?)));
            let Some((head, payload)) = parts else {
                self.counters.received.count_dropped_packet(DropError::BadOffload);
                lost += 1;
                continue;
            };
            match write_packet(queue, &plain, [head, payload].into_iter()) {
                Ok(()) => writes.add(1, head.len() + payload.len()),
                Err(error) => {
                    self.count_and_log_lost(&error, 1, &mut writes.log);
                    lost += 1;
                }
            }
        }
        lost
    }

    #[cold]
    fn count_and_log_lost(&self, error: &io::Error, count: usize, log: &mut LogLimit) {
        self.counters.received.count_dropped_packets(DropError::WriteFailed, count);
        if let Some(times) = log.count_and_take_if_due("write", count) {
            tracing::warn!(
                device = %self.config.device,
                error = %error,
                count = times,
                "cannot write a packet"
            );
        }
    }

    /// The packet in a dropped datagram. With encryption it is at the beginning, because the datagram was
    /// opened in place.
    fn packet_in_dropped_datagram<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        if self.encryption.is_some() {
            datagram.get(..ip_total_length(datagram)?)
        } else {
            datagram.get(self.config.framing.strip(datagram).ok()?)
        }
    }

    /// Drops all datagrams of a receive buffer without inspecting them.
    #[cold]
    fn count_and_log_dropped_buffer(
        &self,
        reason: DropError,
        meta: &RecvMeta,
        state: &mut RxState,
    ) {
        let datagrams = meta.datagrams(meta.segment).count();
        self.count_and_log_dropped(reason, meta.from.ip(), datagrams, &mut state.log, &[]);
    }

    /// `datagram` is empty if the caller did not inspect it.
    #[cold]
    fn count_and_log_dropped(
        &self,
        reason: DropError,
        from: IpAddr,
        times: usize,
        log: &mut LogLimit,
        datagram: &[u8],
    ) {
        self.counters.received.count_dropped_packets(reason, times);
        let Some(times) = log.count_and_take_if_due(reason.as_str(), times) else {
            return;
        };
        let inner =
            self.packet_in_dropped_datagram(datagram).and_then(|packet| Header::parse(packet).ok());
        let source = inner.as_ref().map(|header| display(header.source));
        let destination = inner.as_ref().map(|header| display(header.destination));
        tracing::warn!(
            device = %self.config.device,
            address = %from,
            source,
            destination,
            reason = reason.as_str(),
            remedy = reason.hint(),
            count = times,
            "dropped a packet"
        );
    }
}

/// Writes one packet or GSO packet from several parts.
fn write_packet<'a>(
    queue: &impl Device,
    vnet: &VnetHeader,
    parts: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let head = vnet.bytes();
    let mut slices = [IoSlice::new(&[]); SEGMENTS + 2];
    let mut used = 0;
    if let (true, Some(first)) = (queue.offload().vnet, slices.first_mut()) {
        *first = IoSlice::new(&head);
        used = 1;
    }
    for (slice, part) in slices.iter_mut().skip(used).zip(parts) {
        *slice = IoSlice::new(part);
        used += 1;
    }
    loop {
        match queue.write(slices.get(..used).unwrap_or_default()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}
