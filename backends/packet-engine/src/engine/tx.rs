//! Sending side: reads packets from the TUN device, splits them, gathers the datagrams by peer and size, and
//! sends them.

use super::backlog::{Backlog, Unit};
use super::config::EngineConfig;
use super::errors::Errors;
use super::log_limit::LogLimit;
use super::priority::Priority;
use super::read_backoff::ReadBackoff;
use super::refusals::{REMEMBERED, Segmenting};
use super::send_error::{SendAction, action_for, log_kind_and_remedy};
use super::wake::Wake;
use crate::counters::{Counters, add_to_counter};
use crate::drop_error::DropError;
use crate::encryption::{Encryption, Seal, SendState};
use crate::flow;
use crate::flow::messages::Messages;
use crate::packet::virtio::{self, VnetHeader};
use crate::packet::{Fragment, Header, decrement_ttl};
use crate::packet::{ecn, framing};
use crate::socket::endpoint::Endpoint;
use crate::socket::{LARGEST, Message, Piece, Pieces, Port, Sender, Socket};
use crate::split::{HEADERS, Segments, plan_split_or_complete_checksum};
use crate::table::Table;
use crate::tun::{Device, Tun};
use crate::verdict::{RejectError, judge_outbound_packet};
use arc_swap::ArcSwap;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

/// In bytes: the longest packet and its virtio header.
const SLOT: usize = 65_536 + 64;
/// In bytes. Packets that arrive during a batch wait for its end.
pub(super) const BATCH: usize = 64 << 10;
/// Maximum number of datagrams in one send (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS: usize = 64;
/// Room for the generated headers of one packet, in bytes.
const MADE: usize = HEADERS + framing::VXLAN;
/// Pieces at which the engine sends a batch early.
const PIECES: usize = 4096;
/// The same with encryption and several queues. A thread that the kernel preempts between sealing and sending
/// is overtaken by the threads of other queues. A peer rejects what comes behind its replay window of 8128
/// datagrams (some milliseconds of a fast link).
const SEALED: usize = 64;
/// How long a send waits for room in the socket, in milliseconds.
const SEND_TIMEOUT: u16 = 100;

/// The sending side of one queue; runs in a thread.
pub(super) struct Tx<D = Tun, P = Socket> {
    pub config: Arc<EngineConfig>,
    pub tun: Arc<D>,
    /// A flow always uses the same socket.
    pub sockets: Vec<Arc<P>>,
    pub table: Arc<ArcSwap<Table>>,
    /// Used instead of the forwarding table.
    pub encryption: Option<Arc<dyn Encryption>>,
    pub counters: Arc<Counters>,
    pub wake: Arc<Wake>,
}

/// Messages to send.
#[derive(Default)]
struct Gathered {
    messages: Vec<Message>,
    pieces: Vec<Piece>,
    made: Vec<u8>,
    used: usize,
}

/// How a datagram is sent.
#[derive(Clone, Copy)]
struct Datagram {
    to: Endpoint,
    ecn: u8,
    socket: usize,
}

/// What a thread keeps between batches.
pub(super) struct TxState {
    /// Slots for the packets that were read.
    buffer: Vec<u8>,
    pub(super) backlog: Backlog,
    batch: Vec<Unit>,
    gathered: Gathered,
    sender: Sender,
    errors: Errors,
    log: LogLimit,
    pub(super) segmenting: Segmenting,
    messages: Messages,
}

/// A packet from the TUN device that passed validation.
struct Unpacked {
    /// The offset in the buffer, after the virtio header.
    start: usize,
    segments: Segments,
}

impl Unpacked {
    /// Its place in the buffer.
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.segments.header.total_len
    }
}

impl TxState {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let slots = config.features.batch;
        TxState {
            buffer: vec![0; slots * SLOT],
            backlog: Backlog::new(slots),
            batch: Vec::with_capacity(slots),
            gathered: Gathered::default(),
            sender: Sender::default(),
            errors: Errors::open_raw_sockets(config.sources),
            log: LogLimit::default(),
            segmenting: Segmenting::new(config.features.gso),
            messages: Messages::new(),
        }
    }
}

impl<D: Device, P: Port> Tx<D, P> {
    /// Runs until the wake signal.
    pub(super) fn run_until_wake_signal(self, mut priority: Priority) {
        let mut state = TxState::new(&self.config);
        let mut backoff = ReadBackoff::default();
        let mut table = arc_swap::Cache::new(&*self.table);
        loop {
            if !self.wake.is_end_signaled() {
                match self.read_until_full_or_error(&mut state) {
                    Some(error) if error.kind() != io::ErrorKind::WouldBlock => {
                        self.count_and_log_read_error(&error, &mut state.log);
                        if state.backlog.is_empty() {
                            backoff.pause_after_failure(&self.wake);
                            continue;
                        }
                    }
                    _ if state.backlog.is_empty() => {
                        backoff.wait_for_data_or_wake(&*self.tun, &self.wake);
                        continue;
                    }
                    _ => {}
                }
                backoff.reset_after_success();
            } else if state.backlog.is_empty() {
                // Packets that were read are no longer in the device, so the thread sends them before it ends.
                return;
            }
            self.send_batch(BATCH, table.load(), &mut state);
            priority.adjust_after_batch(state.messages.count());
        }
    }

    /// Sends waiting packets of at least `bytes` bytes, or all.
    pub(super) fn send_batch(&self, bytes: usize, table: &Table, state: &mut TxState) {
        add_to_counter(&self.counters.sent.batches, 1);
        if !state.segmenting.is_unrestricted() {
            state.segmenting.forget_expired_refusals(Instant::now());
        }
        state.messages.begin_batch(Instant::now());
        let most = if self.encryption.is_some() && self.config.features.queues > 1 {
            SEALED
        } else {
            PIECES
        };
        let mut batch = std::mem::take(&mut state.batch);
        state.backlog.fill_batch(bytes, &mut batch);
        let mut units = batch.iter();
        while units.len() > 0 {
            match &self.encryption {
                None => self.gather_units(&mut units, most, state, |unit, state| {
                    self.route_and_gather_or_drop(unit, table, state);
                }),
                Some(encryption) => encryption.seal_batch(&mut |seal| {
                    self.gather_units(&mut units, most, state, |unit, state| {
                        self.encrypt_and_gather_or_drop(unit, seal, state);
                    });
                }),
            }
            self.send_gathered_messages(state);
        }
        state.backlog.drain_batch_and_free_slots(&mut batch);
        state.batch = batch;
    }

    /// Hands packets to `gather` until it has gathered `most` pieces.
    fn gather_units(
        &self,
        units: &mut slice::Iter<'_, Unit>,
        most: usize,
        state: &mut TxState,
        mut gather: impl FnMut(&Unpacked, &mut TxState),
    ) {
        for &unit in units {
            let unpacked = match self.parse_packet(unit, &mut state.buffer) {
                Ok(unpacked) => unpacked,
                Err(reason) => {
                    self.counters.sent.count_dropped_packet(reason);
                    continue;
                }
            };
            let packet = state.buffer.get(unpacked.range()).unwrap_or_default();
            let header = &unpacked.segments.header;
            state.messages.classify_and_count_unit(packet, header, packet.len());
            gather(&unpacked, state);
            if state.gathered.pieces.len() >= most {
                return;
            }
        }
    }

    /// Reads while the backlog has room, and returns the error that stopped it.
    pub(super) fn read_until_full_or_error(&self, state: &mut TxState) -> Option<io::Error> {
        while let Some(slot) = state.backlog.free_slot() {
            let packet = state.buffer.get_mut(slot * SLOT..(slot + 1) * SLOT)?;
            match self.tun.read(packet) {
                Ok(length) => {
                    let (flow, fragment) =
                        self.flow_slot_and_is_fragment(packet.get(..length).unwrap_or_default());
                    state.backlog.push_packet(length, flow, fragment);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(error),
            }
        }
        None
    }

    /// The flow of a packet from the device, and whether it is a fragment.
    #[inline]
    fn flow_slot_and_is_fragment(&self, read: &[u8]) -> (usize, bool) {
        let packet = read.get(self.vnet_header_length()..).unwrap_or_default();
        // Data that is not a packet will be dropped, so its flow does not matter.
        Header::parse(packet).map_or((0, false), |header| {
            let hash = flow::flow_hash(packet, &header);
            (flow::flow_table_slot(hash), header.fragment != Fragment::No)
        })
    }

    /// In bytes: the virtio header before a packet.
    fn vnet_header_length(&self) -> usize {
        if self.tun.offload().vnet { virtio::LEN } else { 0 }
    }

    #[cold]
    pub(super) fn count_and_log_read_error(&self, error: &io::Error, log: &mut LogLimit) {
        add_to_counter(&self.counters.sent.errors, 1);
        // The device was deleted. The code that creates it again logs this and starts new threads.
        if error.raw_os_error() == Some(libc::EBADFD) {
            return;
        }
        if let Some(times) = log.count_and_take_if_due("read", 1) {
            tracing::warn!(
                device = %self.config.device,
                error = %error,
                count = times,
                "cannot read from the TUN device, retrying"
            );
        }
    }

    /// Completes the checksum of a packet that is not split.
    fn parse_packet(&self, unit: Unit, buffer: &mut [u8]) -> Result<Unpacked, DropError> {
        let vnet = self.vnet_header_length();
        let at = unit.slot * SLOT;
        let (head, packet) = buffer
            .get_mut(at..at + unit.length)
            .and_then(|all| all.split_at_mut_checked(vnet))
            .ok_or(DropError::Short)?;
        let vnet_header = if vnet > 0 {
            VnetHeader::parse(head).ok_or(DropError::BadOffload)?
        } else {
            VnetHeader::default()
        };
        let header = Header::parse(packet)?;
        let segments = plan_split_or_complete_checksum(&vnet_header, &header, packet)?;
        Ok(Unpacked { start: at + vnet, segments })
    }

    /// Drops a packet, and sends the ICMP error to its sender.
    #[cold]
    fn drop_packet_and_send_icmp_error(
        &self,
        (reply, reason): RejectError,
        unpacked: &Unpacked,
        state: &mut TxState,
    ) {
        let Segments { header, count, .. } = unpacked.segments;
        if let Some(kind) = reply {
            let packet = state.buffer.get(unpacked.range()).unwrap_or_default();
            state.errors.reply_if_allowed(kind, packet, &header, &self.counters);
            if let Some(times) = (reason == DropError::NoRoute)
                .then(|| state.log.count_and_take_if_due(reason.as_str(), count))
                .flatten()
            {
                tracing::info!(
                    device = %self.config.device,
                    destination = %header.destination,
                    count = times,
                    "no node has a subnet with the destination"
                );
            }
        }
        if reason == DropError::Loop
            && let Some(times) = state.log.count_and_take_if_due(reason.as_str(), count)
        {
            tracing::warn!(
                device = %self.config.device,
                source = %header.source,
                destination = %header.destination,
                reason = reason.as_str(),
                remedy = "check `ip route get` with the destination: a pod sends tunnel packets itself, or the route to the destination leads into the device",
                count = times,
                "dropped a packet to the tunnel's port on a node: flanneld would send it into the tunnel again"
            );
        }
        self.counters.sent.count_dropped_packets(reason, count);
    }

    /// Looks up the peer of a packet and gathers its datagrams, or drops it.
    fn route_and_gather_or_drop(&self, unpacked: &Unpacked, table: &Table, state: &mut TxState) {
        let Unpacked { start, segments } = *unpacked;
        let header = segments.header;
        let packet = state.buffer.get_mut(unpacked.range()).unwrap_or_default();
        let longest = segments.full_packet_len();
        let peer = match judge_outbound_packet(&header, packet, table, longest) {
            Ok(peer) => peer,
            Err(rejection) => {
                return self.drop_packet_and_send_icmp_error(rejection, unpacked, state);
            }
        };
        if table.settings.routed {
            decrement_ttl(packet);
        }
        let datagram = Datagram {
            to: peer.address.into(),
            ecn: ecn::outer_header_ecn(header.tos, peer.outer_ecn),
            socket: self.socket_index_for_flow(&header, packet),
        };
        let gso = state.segmenting.is_on(datagram.to.ip());
        let gathered = &mut state.gathered;
        for index in 0..segments.count {
            let room = gathered.room(MADE);
            let front = self.config.framing.write(peer.mac, header.family, room);
            let room = room.get_mut(front..).unwrap_or_default();
            let Some((own, payload)) = segments.write_headers(index, packet, room) else {
                self.counters.sent.count_dropped_packet(DropError::BadOffload);
                continue;
            };
            let payload = start + payload.start..start + payload.end;
            gathered.add_datagram(datagram, front + own, payload, gso);
        }
    }

    /// Chooses the peer of a packet, once for all its segments, and seals them for it in the buffer for
    /// generated headers, or queues them until the peer has a session.
    fn encrypt_and_gather_or_drop(
        &self,
        unpacked: &Unpacked,
        seal: &mut dyn Seal,
        state: &mut TxState,
    ) {
        let segments = unpacked.segments;
        let (header, longest) = (segments.header, segments.full_packet_len());
        let sent = &self.counters.sent;
        let packet = state.buffer.get(unpacked.range()).unwrap_or_default();
        let datagram = match seal.select_peer(&header, packet, longest) {
            Ok(SendState::AwaitingSession) => None,
            Ok(SendState::Ready(to)) => {
                let Some(socket) =
                    self.sockets.iter().position(|socket| socket.is_ipv6() == to.to.is_ipv6())
                else {
                    return sent.count_dropped_packets(DropError::NoEndpoint, segments.count);
                };
                let ecn = ecn::outer_header_ecn(header.tos, true);
                Some(Datagram { to, ecn, socket })
            }
            Err(rejection) => {
                return self.drop_packet_and_send_icmp_error(rejection, unpacked, state);
            }
        };
        let gso = datagram.is_some_and(|datagram| state.segmenting.is_on(datagram.to.ip()));
        let overhead = self.config.framing.overhead();
        let gathered = &mut state.gathered;
        for index in 0..segments.count {
            let most = seal.place(longest.max(HEADERS));
            let room = gathered.room(most.len() + overhead);
            let plain = room.get_mut(most).unwrap_or_default();
            let Some(length) = segments.write_packet(index, packet, plain) else {
                sent.count_dropped_packet(DropError::BadOffload);
                continue;
            };
            let place = seal.place(length);
            let bytes = place.len() + overhead;
            let Some(plain) = room.get_mut(place) else {
                sent.count_internal_error("a padded packet is inside its room", 1);
                continue;
            };
            plain.iter_mut().skip(length).for_each(|byte| *byte = 0);
            let Some(datagram) = datagram else {
                sent.count_dropped_packets(DropError::NoSession, seal.park(plain));
                continue;
            };
            if room.get_mut(..bytes).is_some_and(|datagram| seal.seal(datagram)) {
                gathered.add_datagram(datagram, bytes, 0..0, gso);
            } else {
                sent.count_dropped_packet(DropError::NoSession);
            }
        }
    }

    /// The index of the socket for a flow.
    #[inline]
    fn socket_index_for_flow(&self, header: &Header, packet: &[u8]) -> usize {
        if self.sockets.len() <= 1 {
            return 0;
        }
        (flow::flow_hash(packet, header) >> 16) as usize % self.sockets.len()
    }

    fn send_gathered_messages(&self, state: &mut TxState) {
        let messages = std::mem::take(&mut state.gathered.messages);
        self.send_or_count_lost(&messages, state);
        state.gathered.messages = messages;
        state.gathered.clear();
        let refused = state.sender.take_refused_endpoints();
        if let Some(encryption) = self.encryption.as_ref().filter(|_| !refused.is_empty()) {
            encryption.forget_sources(&refused);
        }
    }

    /// Sends messages, and retries what the kernel refuses. True if none was lost.
    fn send_or_count_lost(&self, messages: &[Message], state: &mut TxState) -> bool {
        let mut rest = messages;
        let mut tries = 0;
        let mut lost = false;
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|message| message.socket == first.socket).count();
            let (now, behind) = rest.split_at(run);
            let TxState { sender, gathered, buffer, .. } = &mut *state;
            let pieces = Pieces { all: &gathered.pieces, made: &gathered.made, read: buffer };
            let socket = self.sockets.get(first.socket);
            let (done, error) = socket.map_or((0, None), |socket| socket.send(sender, now, pieces));
            let (sent, left) = now.split_at_checked(done).unwrap_or((now, &[]));
            sent.iter().for_each(|message| self.count_sent_inner_traffic(message));
            if !state.segmenting.is_unrestricted() && sent.iter().any(|message| message.count > 1) {
                state.segmenting.record_success();
            }
            let Some(failed) = left.first() else {
                rest = behind;
                tries = 0;
                continue;
            };
            rest = rest.get(sent.len()..).unwrap_or_default();
            tries = if sent.is_empty() { tries } else { 0 };
            let error = error.unwrap_or_else(|| io::ErrorKind::WriteZero.into());
            match action_for(&error, failed.count > 1, tries) {
                SendAction::Retry => tries += 1,
                SendAction::Wait if self.wait_for_room(failed.socket) => tries += 1,
                action => {
                    if action == SendAction::SendSingly {
                        self.send_singly_and_blame_segmentation(failed, &error, state);
                    } else {
                        self.count_and_log_lost(failed, &error, &mut state.log);
                        lost = true;
                    }
                    (rest, tries) = (rest.get(1..).unwrap_or_default(), 0);
                }
            }
        }
        !lost
    }

    #[inline]
    fn count_sent_inner_traffic(&self, message: &Message) {
        let sent = &self.counters.sent;
        add_to_counter(&sent.units, 1);
        add_to_counter(&sent.packets, message.count);
        add_to_counter(
            &sent.bytes,
            message.bytes.saturating_sub(message.count * self.config.framing.overhead()),
        );
    }

    #[cold]
    fn count_and_log_lost(&self, message: &Message, error: &io::Error, log: &mut LogLimit) {
        self.counters.sent.count_dropped_packets(DropError::SendFailed, message.count);
        let (kind, remedy) = log_kind_and_remedy(error);
        if let Some(times) = log.count_and_take_if_due(kind, message.count) {
            tracing::warn!(
                device = %self.config.device,
                address = %message.to.to,
                error = %error,
                remedy,
                count = times,
                "cannot send packets"
            );
        }
    }

    /// False if the socket did not become ready.
    fn wait_for_room(&self, socket: usize) -> bool {
        let Some(socket) = self.sockets.get(socket) else {
            return false;
        };
        let mut polled = [
            PollFd::new(socket.as_fd(), PollFlags::POLLOUT),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
        ];
        let ready = poll(&mut polled, PollTimeout::from(SEND_TIMEOUT)).unwrap_or(0);
        ready > 0 && polled.first().is_some_and(|polled| polled.any().unwrap_or(false))
    }

    fn send_singly_and_blame_segmentation(
        &self,
        message: &Message,
        error: &io::Error,
        state: &mut TxState,
    ) {
        add_to_counter(&self.counters.unsegmented, 1);
        tracing::debug!(
            address = %message.to.to,
            count = message.count,
            bytes = message.segment,
            error = %error,
            "cannot send segments"
        );
        let mut lost = false;
        let mut from = message.pieces.start;
        while from < message.pieces.end {
            let mut bytes = 0;
            let mut to = from;
            while to < message.pieces.end && bytes < message.segment {
                bytes += state.gathered.pieces.get(to).map_or(0, |piece| piece.len as usize);
                to += 1;
            }
            let one =
                Message { pieces: from..to, segment: bytes, count: 1, bytes, ..message.clone() };
            lost |= !self.send_or_count_lost(&[one], state);
            from = to;
        }
        // If the kernel also refuses a single datagram, the cause is not the segmentation.
        if !lost {
            self.disable_segments_and_log(message, error, state);
        }
    }

    /// Remembers that the kernel refused a segmented send; the log line is rate-limited.
    #[cold]
    fn disable_segments_and_log(&self, message: &Message, error: &io::Error, state: &mut TxState) {
        let (device, seconds) = (&self.config.device, REMEMBERED.as_secs());
        if state.segmenting.disable_for_destination_or_all(
            message.to.ip(),
            error.raw_os_error() == Some(libc::EMSGSIZE),
            Instant::now(),
        ) && let Some(times) = state.log.count_and_take_if_due("segmented sends to all", 1)
        {
            tracing::warn!(
                device = %device,
                seconds,
                error = %error,
                count = times,
                "UDP_SEGMENT failed for several consecutive peers; sending datagrams one by one for now"
            );
        } else if let Some(times) = state.log.count_and_take_if_due("segmented sends", 1) {
            tracing::info!(
                device = %device,
                address = %message.to.ip(),
                seconds,
                error = %error,
                reason = "the route to the peer has a smaller MTU, or an IPsec policy",
                count = times,
                "UDP_SEGMENT failed for a peer; sending datagrams to the peer one by one for now"
            );
        }
    }
}

impl Gathered {
    fn clear(&mut self) {
        self.messages.clear();
        self.pieces.clear();
        self.used = 0;
    }

    /// Room for at least this many bytes after those generated so far.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.used + bytes;
        if self.made.len() < end {
            self.made.resize(end * 2, 0);
        }
        self.made.get_mut(self.used..).unwrap_or_default()
    }

    /// Adds a datagram of `made` generated bytes and of bytes from the read buffer to the last message if it
    /// fits, or else to a new one.
    #[inline]
    fn add_datagram(&mut self, datagram: Datagram, made: usize, read: Range<usize>, gso: bool) {
        let from = self.pieces.len();
        for (made, at, len) in [(true, self.used, made), (false, read.start, read.len())] {
            if len > 0 {
                self.pieces.push(Piece { made, at: at as u32, len: len as u32 });
            }
        }
        self.used += made;
        let (end, bytes) = (self.pieces.len(), made + read.len());
        let Datagram { to, ecn, socket } = datagram;
        if let (true, Some(last)) = (gso, self.messages.last_mut())
            && last.to == to
            && (last.tos, last.socket) == (ecn, socket)
            && bytes <= last.segment
            // A shorter datagram is the last one of its message.
            && last.bytes == last.count * last.segment
            && last.count < SEGMENTS
            && last.bytes + bytes <= LARGEST
        {
            last.pieces.end = end;
            last.count += 1;
            last.bytes += bytes;
            return;
        }
        self.messages.push(Message {
            to,
            pieces: from..end,
            segment: bytes,
            count: 1,
            bytes,
            tos: ecn,
            socket,
        });
    }
}

#[cfg(test)]
mod tests;
