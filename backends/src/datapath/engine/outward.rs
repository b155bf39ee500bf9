//! From the TUN device to the peers: read what waits, split it, gather it by peer and size, send it.

use super::complaints::Complaints;
use super::errors::Errors;
use super::wake::Wake;
use super::{Shape, readable};
use crate::datapath::counters::{Counters, add};
use crate::datapath::packet::{Fragment, Header, Version, decrement_ttl};
use crate::datapath::socket::{LARGEST, Message, Piece, Sender, Socket};
use crate::datapath::split::{HEADERS, Split, split};
use crate::datapath::table::{Peer, Table};
use crate::datapath::tun::Tun;
use crate::datapath::turns::{self, Turns};
use crate::datapath::verdict::{Outbound, Reason, outbound};
use crate::datapath::virtio::{self, VnetHeader};
use crate::datapath::{ecn, flow, framing};
use arc_swap::ArcSwap;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Room for one packet as it is read: the longest there is, and its virtio header.
const SLOT: usize = 65_536 + 64;
/// No more is read once there are so many bytes: the processor's cache has to hold them, and who comes last waits for all of them.
const BUDGET: usize = 512 << 10;
/// The kernel takes so many datagrams a send (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS: usize = 64;
/// Room for the made headers of one packet.
const MADE: usize = HEADERS + framing::VXLAN;
/// A batch is sent before it grows beyond this many pieces.
const PIECES: usize = 4096;
/// How long a send waits for room, in milliseconds, before it is given up.
const PATIENCE: u16 = 100;
/// So many refusals of segmented sends that succeed one by one mean that the kernel, or the driver, cannot do it.
const REFUSALS: usize = 3;

/// The work of one thread.
pub struct Outward {
    pub shape: Arc<Shape>,
    pub tun: Arc<Tun>,
    /// By which packets leave; a flow always by the same.
    pub sockets: Vec<Arc<Socket>>,
    pub table: Arc<ArcSwap<Table>>,
    pub counters: Arc<Counters>,
    pub wake: Arc<Wake>,
}

/// What is gathered to be sent.
#[derive(Default)]
struct Gathered {
    messages: Vec<Message>,
    pieces: Vec<Piece>,
    made: Vec<u8>,
    used: usize,
    /// Whether the last message takes no more: a shorter datagram ends it.
    ended: bool,
}

/// One datagram that is to be sent.
#[derive(Clone, Copy)]
struct Datagram {
    to: SocketAddr,
    ecn: u8,
    socket: usize,
    /// All pieces together.
    bytes: usize,
}

/// What one thread keeps between batches.
struct State {
    turns: Turns,
    gathered: Gathered,
    sender: Sender,
    errors: Errors,
    complaints: Complaints,
    gso: bool,
    refusals: usize,
}

impl Outward {
    /// Works until the wake.
    pub fn run(self) {
        let features = self.shape.features;
        let mut buffer = vec![0; features.batch * SLOT];
        let mut lengths = Vec::with_capacity(features.batch);
        let mut state = State {
            turns: Turns::default(),
            gathered: Gathered::default(),
            sender: Sender::default(),
            errors: Errors::new(self.shape.sources),
            complaints: Complaints::default(),
            gso: features.gso,
            refusals: 0,
        };
        let mut table = arc_swap::Cache::new(&*self.table);
        while !self.wake.called() {
            self.read(features.batch, &mut buffer, &mut lengths);
            if lengths.is_empty() {
                if !readable(&*self.tun, &self.wake) {
                    return;
                }
                continue;
            }
            add(&self.counters.sent.batches, 1);
            let table: &Table = table.load();
            self.arrange(&buffer, &lengths, &mut state.turns);
            for turn in 0..lengths.len() {
                let index = state.turns.unit(turn);
                let length = lengths.get(index).copied().unwrap_or(0);
                self.packet(index * SLOT, length, &mut buffer, table, &mut state);
                if state.gathered.pieces.len() >= PIECES {
                    self.flush(&buffer, &mut state);
                }
            }
            self.flush(&buffer, &mut state);
        }
    }

    /// Reads what waits, `most` packets at most, each into a slot of its own.
    fn read(&self, most: usize, buffer: &mut [u8], lengths: &mut Vec<usize>) {
        lengths.clear();
        let mut bytes = 0;
        while lengths.len() < most && bytes < BUDGET {
            let at = lengths.len() * SLOT;
            let Some(slot) = buffer.get_mut(at..at + SLOT) else { return };
            match self.tun.read(slot) {
                Ok(length) => {
                    lengths.push(length);
                    bytes += length;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock && lengths.is_empty() {
                        // The device is gone: who repairs it starts another thread.
                        let mut polled = [PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
                        let _ = poll(&mut polled, PollTimeout::from(PATIENCE));
                    }
                    return;
                }
            }
        }
    }

    /// Settles whose packets are sent first.
    fn arrange(&self, buffer: &[u8], lengths: &[usize], turns: &mut Turns) {
        turns.clear();
        if lengths.len() < 2 || lengths.iter().sum::<usize>() < turns::WORTH {
            return;
        }
        let vnet = if self.tun.offload().vnet { virtio::LEN } else { 0 };
        for (index, length) in lengths.iter().enumerate() {
            let at = index * SLOT;
            let packet = buffer.get(at + vnet..at + length).unwrap_or_default();
            let slot = match Header::parse(packet) {
                Ok(header) if header.fragment == Fragment::No => flow::slot(packet, &header),
                Ok(_) => {
                    turns.fix();
                    0
                }
                // It is dropped, whenever.
                Err(_) => 0,
            };
            turns.count(slot, *length);
            turns.push(slot);
        }
        turns.arrange();
    }

    /// Judges a packet and gathers what comes out of it.
    fn packet(&self, at: usize, length: usize, buffer: &mut [u8], table: &Table, state: &mut State) {
        let dropped = |reason| self.counters.sent.dropped(reason);
        let vnet = if self.tun.offload().vnet { virtio::LEN } else { 0 };
        let Some((head, packet)) = buffer.get_mut(at..at + length).and_then(|all| all.split_at_mut_checked(vnet)) else {
            return dropped(Reason::Short);
        };
        let Some(vnet_header) = (if vnet > 0 { VnetHeader::parse(head) } else { Some(VnetHeader::default()) }) else {
            return dropped(Reason::BadOffload);
        };
        let header = match Header::parse(packet) {
            Ok(header) => header,
            Err(reason) => return dropped(reason),
        };
        let split = match split(&vnet_header, &header, packet) {
            Ok(split) => split,
            Err(reason) => return dropped(reason),
        };
        let segment = if let Split::Segments(segments) = &split { Some(segments.full()) } else { None };
        let peer = match outbound(&header, packet, table, segment) {
            Outbound::Send(peer) => peer,
            Outbound::Drop(reason) => return dropped(reason),
            Outbound::Reply(kind, reason) => {
                state.errors.tell(kind, packet, &header, &self.counters);
                if let Some(times) = (reason == Reason::NoRoute).then(|| state.complaints.note(reason.as_str(), 1)).flatten() {
                    tracing::info!("{}: no node has the subnet of {} ({times} packets)", self.shape.device, header.destination);
                }
                return dropped(reason);
            }
        };
        if table.routed {
            decrement_ttl(packet);
        }
        let datagram =
            Datagram { to: peer.address, ecn: ecn::encapsulate(header.tos, peer.outer_ecn), socket: self.socket(&header, packet), bytes: 0 };
        let gathered = &mut state.gathered;
        let start = at + vnet;
        let bytes = packet.len();
        let packets = match split {
            Split::Whole => {
                let made = self.front(gathered, peer, &header);
                let from = gathered.pieces.len();
                gathered.made_piece(made);
                gathered.read_piece(start, bytes);
                gathered.add(Datagram { bytes: made + bytes, ..datagram }, from, state.gso);
                1
            }
            Split::Segments(segments) => {
                let mut sent = 0;
                for index in 0..segments.count() {
                    let front = self.front(gathered, peer, &header);
                    let room = gathered.made.get_mut(gathered.used + front..).unwrap_or_default();
                    let Some((own, payload)) = segments.header(index, packet, room) else { break };
                    let from = gathered.pieces.len();
                    gathered.made_piece(front + own);
                    gathered.read_piece(start + payload.start, payload.len());
                    gathered.add(Datagram { bytes: front + own + payload.len(), ..datagram }, from, state.gso);
                    sent += 1;
                }
                sent
            }
        };
        add(&self.counters.sent.packets, packets);
        add(&self.counters.sent.bytes, bytes);
    }

    /// Writes what stands in front of a packet behind what has been made; its length.
    #[inline]
    fn front(&self, gathered: &mut Gathered, peer: &Peer, header: &Header) -> usize {
        if gathered.made.len() < gathered.used + MADE {
            gathered.made.resize((gathered.used + MADE) * 2, 0);
        }
        let room = gathered.made.get_mut(gathered.used..).unwrap_or_default();
        self.shape.framing.write(peer.mac, header.version == Version::V6, room)
    }

    /// By which socket a flow leaves.
    #[inline]
    fn socket(&self, header: &Header, packet: &[u8]) -> usize {
        if self.sockets.len() <= 1 {
            return 0;
        }
        (flow::hash(packet, header) >> 16) as usize % self.sockets.len()
    }

    /// Sends what is gathered.
    fn flush(&self, buffer: &[u8], state: &mut State) {
        let State { gathered, sender, .. } = state;
        let messages = std::mem::take(&mut gathered.messages);
        let mut rest = messages.as_slice();
        let mut retried = false;
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|message| message.socket == first.socket).count();
            let (Some(socket), Some(now)) = (self.sockets.get(first.socket), rest.get(..run)) else { break };
            let (done, error) = sender.send(socket, now, &gathered.pieces, &gathered.made, buffer);
            let sent = now.get(..done).unwrap_or_default();
            add(&self.counters.sent.units, sent.len());
            rest = rest.get(done..).unwrap_or_default();
            let (Some(error), Some(failed)) = (error, rest.first()) else { continue };
            // The error of a packet before, told late by ICMP, is no error of this one.
            let late = matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EINTR | libc::EHOSTUNREACH | libc::ENETUNREACH)) && done == 0;
            if late && !std::mem::replace(&mut retried, true) {
                continue;
            }
            retried = false;
            if error.kind() == io::ErrorKind::WouldBlock && self.room(socket) {
                continue;
            }
            rest = rest.get(1..).unwrap_or_default();
            let segmented = failed.count > 1 && matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL | libc::EIO | libc::EOPNOTSUPP));
            let lost = if segmented { self.one_by_one(failed, &error, gathered, sender, socket, buffer) } else { failed.count };
            if segmented {
                let refused = lost == 0 && error.raw_os_error() != Some(libc::EMSGSIZE);
                state.refusals += usize::from(refused);
                if state.refusals == REFUSALS && state.gso {
                    tracing::warn!("{}: datagrams are sent one by one from now on: UDP_SEGMENT: {error}", self.shape.device);
                    state.gso = false;
                }
            }
            if lost > 0 {
                self.counters.sent.dropped_many(Reason::SendFailed, lost);
                let name = error.raw_os_error().map_or("send", |_| "send error");
                if let Some(times) = state.complaints.note(name, lost) {
                    tracing::warn!("{}: cannot send to {}: {error} ({times} packets)", self.shape.device, failed.to);
                }
            }
        }
        gathered.messages = messages;
        gathered.clear();
    }

    /// Waits a moment for room in the socket.
    fn room(&self, socket: &Socket) -> bool {
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT), PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut polled, PollTimeout::from(PATIENCE)).unwrap_or(0);
        ready > 0 && polled.first().is_some_and(|polled| polled.any().unwrap_or(false))
    }

    /// Sends the datagrams of a message each by itself; how many were lost.
    fn one_by_one(&self, message: &Message, error: &io::Error, gathered: &Gathered, sender: &mut Sender, socket: &Socket, buffer: &[u8]) -> usize {
        add(&self.counters.unsegmented, 1);
        tracing::debug!("a segmented send of {} x {} bytes to {}: {error}", message.count, message.segment, message.to);
        let mut lost = 0;
        let mut from = message.pieces.start;
        while from < message.pieces.end {
            let mut bytes = 0;
            let mut to = from;
            while to < message.pieces.end && bytes < message.segment {
                bytes += gathered.pieces.get(to).map_or(0, |piece| piece.len as usize);
                to += 1;
            }
            let one = Message { pieces: from..to, segment: bytes, count: 1, bytes, ..message.clone() };
            let (sent, _) = sender.send(socket, &[one], &gathered.pieces, &gathered.made, buffer);
            lost += 1 - sent.min(1);
            from = to;
        }
        lost
    }
}

impl Gathered {
    fn clear(&mut self) {
        self.messages.clear();
        self.pieces.clear();
        self.used = 0;
        self.ended = false;
    }

    #[inline]
    fn made_piece(&mut self, length: usize) {
        if length > 0 {
            self.pieces.push(Piece { made: true, at: self.used as u32, len: length as u32 });
            self.used += length;
        }
    }

    #[inline]
    fn read_piece(&mut self, at: usize, length: usize) {
        if length > 0 {
            self.pieces.push(Piece { made: false, at: at as u32, len: length as u32 });
        }
    }

    /// Adds a datagram, whose pieces begin at `from`, to the last message if it fits there, or begins another.
    #[inline]
    fn add(&mut self, datagram: Datagram, from: usize, gso: bool) {
        let end = self.pieces.len();
        if let (true, false, Some(last)) = (gso, self.ended, self.messages.last_mut())
            && last.to == datagram.to
            && (last.ecn, last.socket) == (datagram.ecn, datagram.socket)
            && datagram.bytes <= last.segment
            && last.count < SEGMENTS
            && last.bytes + datagram.bytes <= LARGEST
        {
            last.pieces.end = end;
            last.count += 1;
            last.bytes += datagram.bytes;
            self.ended = datagram.bytes < last.segment;
            return;
        }
        self.ended = false;
        self.messages.push(Message {
            to: datagram.to,
            pieces: from..end,
            segment: datagram.bytes,
            count: 1,
            bytes: datagram.bytes,
            ecn: datagram.ecn,
            socket: datagram.socket,
        });
    }
}

#[cfg(test)]
mod tests;
