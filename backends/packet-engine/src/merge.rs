//! Merges packets of one batch into GSO packets for the TUN device. A GSO packet has the headers of the first
//! packet and the payload of all.
//!
//! A packet is added only to the latest group of its flow, so the order within a flow stays the same. Only
//! UDP datagrams and plain data of established TCP streams are merged; the rest passes unchanged. The merger
//! verifies a checksum first, because a GSO packet implies a correct one. A partial checksum (see
//! [`crate::packet::partial_checksum`]) needs no verification and stays partial.

use crate::flow::{self, SLOTS};
use crate::packet::checksum;
use crate::packet::partial_checksum::{self, checksum_field_offset};
use crate::packet::virtio::{Gso, VnetHeader};
use crate::packet::{
    Fragment, Header, TCP, UDP, V4_HEADER, V6_HEADER, place_of_addresses, set_total_length,
    write_word,
};
use std::ops::Range;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Maximum number of segments in a GSO packet.
pub const SEGMENTS: usize = 64;
/// The longest IP packet in bytes: its length field has 16 bits.
const LONGEST: usize = 65_535;
/// A batch below this size in bytes is written in order of arrival.
const MIN_BYTES: usize = 64 << 10;

/// One write to the TUN device: a single packet or a merged one. All ranges refer to the batch's buffer.
pub struct Group {
    /// The first packet with its headers.
    pub first: Range<usize>,
    /// The payload of the other packets.
    pub rest: Vec<Range<usize>>,
    /// The IP header of the first packet.
    pub(crate) header: Header,
    /// The hash of its flow.
    pub(crate) hash: u32,
    /// [`Gso::None`] if it cannot have several packets.
    kind: Gso,
    /// Whether it accepts more packets.
    open: bool,
    /// The offset of the payload in the first packet in bytes.
    header_len: usize,
    /// The payload length of the first packet in bytes.
    size: usize,
    /// The length of the merged packet in bytes, with headers.
    total: usize,
    /// The TCP sequence number that would continue the group.
    next: u32,
    push: bool,
    /// Whether the first packet's checksum is partial.
    partial: bool,
}

impl Group {
    /// The packets that peers sent, including those inside a received GSO packet.
    #[must_use]
    pub fn count(&self) -> usize {
        match self.kind {
            Gso::None => 1,
            _ => self.total.saturating_sub(self.header_len).div_ceil(self.size.max(1)),
        }
    }

    /// In bytes: all packets, each with its headers.
    #[must_use]
    pub fn bytes_as_single_packets(&self) -> usize {
        self.total + self.count().saturating_sub(1) * self.header_len
    }

    /// [`Gso::None`] for a single packet.
    #[must_use]
    pub fn kind(&self) -> Gso {
        if self.count() > 1 { self.kind } else { Gso::None }
    }

    /// The first packet and the other payloads, in order.
    pub fn ranges(&self) -> impl Iterator<Item = &Range<usize>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Adapts the headers of the first packet for the write, and returns the virtio header. `None` if the
    /// group is not of this buffer.
    pub fn finish_headers(&self, buffer: &mut [u8]) -> Option<VnetHeader> {
        if !self.rest.is_empty() {
            write_merged_headers(self, buffer.get_mut(self.first.clone())?)?;
        } else if !self.partial {
            return Some(VnetHeader::default());
        }
        let vnet = VnetHeader {
            needs_csum: true,
            csum_start: u16::try_from(self.header.transport).ok()?,
            csum_offset: u16::try_from(checksum_field_offset(self.header.protocol)?).ok()?,
            ..VnetHeader::default()
        };
        if self.kind() == Gso::None {
            return Some(vnet);
        }
        Some(VnetHeader {
            gso: self.kind,
            header_len: u16::try_from(self.header_len).ok()?,
            gso_size: u16::try_from(self.size).ok()?,
            ..vnet
        })
    }
}

/// Merges the packets of one batch.
pub struct Merger {
    /// In the order of arrival.
    groups: Vec<Group>,
    /// The memory of earlier groups.
    spare: Vec<Vec<Range<usize>>>,
    /// The latest group of each flow. If two flows share a slot, fewer of their packets are merged.
    slots: [Option<usize>; SLOTS],
    /// The bytes of each flow.
    bytes: [usize; SLOTS],
    /// Whether the groups are written in order of arrival, because the flow of a packet is unknown.
    keep_order: bool,
    order: Vec<usize>,
    merge_tcp: bool,
    merge_udp: bool,
    checksums_trusted: bool,
}

impl Merger {
    #[must_use]
    pub fn new(merge_tcp: bool, merge_udp: bool) -> Self {
        Self {
            groups: Vec::new(),
            spare: Vec::new(),
            slots: [None; SLOTS],
            bytes: [0; SLOTS],
            keep_order: false,
            order: Vec::new(),
            merge_tcp,
            merge_udp,
            checksums_trusted: false,
        }
    }

    /// Applies from the next batch on.
    pub fn set_merged_protocols(&mut self, tcp: bool, udp: bool) {
        (self.merge_tcp, self.merge_udp) = (tcp, udp);
    }

    /// WireGuard authenticates packets, so no link between the nodes has damaged them. In the kernel it does
    /// not verify inner checksums either.
    pub(crate) fn trust_checksums(&mut self) {
        self.checksums_trusted = true;
    }

    /// Empties the merger for the next batch and keeps its memory.
    pub fn clear(&mut self) {
        self.spare.extend(self.groups.drain(..).map(|mut group| {
            group.rest.clear();
            group.rest
        }));
        self.slots = [None; SLOTS];
        self.bytes = [0; SLOTS];
        self.keep_order = false;
    }

    /// After all packets were offered: the groups of flows with few bytes first. A program usually waits for
    /// these (replies, acknowledgements, DNS), and they would queue behind a bulk stream.
    pub fn groups_small_flows_first(&mut self) -> impl Iterator<Item = &Group> {
        let Self { groups, bytes, order, .. } = self;
        order.clear();
        order.extend(0..groups.len());
        if !self.keep_order && bytes.iter().sum::<usize>() >= MIN_BYTES {
            // The sort is stable, so groups of one flow keep their order.
            order.sort_by_key(|index| {
                groups.get(*index).and_then(|group| bytes.get(flow::flow_table_slot(group.hash)))
            });
        }
        order.iter().filter_map(|index| groups.get(*index))
    }

    /// Adds the packet at `at` in `buffer`.
    pub fn merge_or_add_packet(&mut self, buffer: &[u8], at: Range<usize>, header: &Header) {
        let Some(packet) = buffer.get(at.clone()) else {
            return;
        };
        if header.fragment != Fragment::No {
            // The flow of a fragment is unknown. Later packets must not be merged with earlier ones, and must not overtake them.
            self.slots = [None; SLOTS];
            self.keep_order = true;
            self.push_new_group(at, header, flow::flow_hash(packet, header), None, false);
            return;
        }
        let (hash, slot) = self.count_flow_bytes(packet, header);
        let pseudo = partial_checksum::packet_pseudo_header_sum(packet, header);
        let partial =
            pseudo.is_some_and(|pseudo| partial_checksum::is_partial(packet, header, pseudo));
        let wanted = match header.protocol {
            TCP => self.merge_tcp,
            UDP => self.merge_udp,
            _ => false,
        };
        let trusted = partial || self.checksums_trusted;
        let candidate = pseudo
            .filter(|_| wanted)
            .and_then(|pseudo| Candidate::parse_if_mergeable(packet, header, pseudo, trusted));
        let latest = self.slots.get(slot).copied().flatten();
        if let (Some(candidate), Some(group)) =
            (candidate, latest.and_then(|latest| self.groups.get_mut(latest)))
            && group.open
            && let Some(first) = buffer.get(group.first.clone())
            && candidate.follows(packet, group, first)
        {
            group.rest.push(at.start + candidate.payload..at.end);
            group.total += candidate.size;
            group.next = candidate.next;
            group.push |= candidate.push;
            group.open =
                candidate.size == group.size && !candidate.push && group.rest.len() + 1 < SEGMENTS;
            return;
        }
        let index = self.push_new_group(at, header, hash, candidate, partial);
        if let (true, Some(place)) = (wanted, self.slots.get_mut(slot)) {
            *place = Some(index);
        }
    }

    /// Counts a packet of a flow, and returns the flow's hash and slot.
    #[inline]
    fn count_flow_bytes(&mut self, packet: &[u8], header: &Header) -> (u32, usize) {
        let hash = flow::flow_hash(packet, header);
        let slot = flow::flow_table_slot(hash);
        if let Some(bytes) = self.bytes.get_mut(slot) {
            *bytes += packet.len();
        }
        (hash, slot)
    }

    /// Adds a GSO packet as a whole. Its segments have `size` bytes of payload each, and its checksum is
    /// partial.
    pub fn add_gso_packet(
        &mut self,
        buffer: &[u8],
        at: Range<usize>,
        header: &Header,
        size: usize,
    ) {
        let Some(packet) = buffer.get(at.clone()) else {
            return;
        };
        let (hash, slot) = self.count_flow_bytes(packet, header);
        let payload = header.payload_offset(packet).unwrap_or(header.transport);
        // A pushed segment ends its group.
        let complete = Candidate { payload, size, push: true, ..Candidate::default() };
        let index = self.push_new_group(at, header, hash, Some(complete), true);
        // No packet is merged with the GSO packet, and later packets of its flow are not merged with earlier ones.
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(index);
        }
    }

    fn push_new_group(
        &mut self,
        at: Range<usize>,
        header: &Header,
        hash: u32,
        candidate: Option<Candidate>,
        partial: bool,
    ) -> usize {
        let kind = candidate.map_or(Gso::None, |_| Gso::of_protocol(header));
        let Candidate { payload, size, next, push, .. } = candidate.unwrap_or_default();
        let index = self.groups.len();
        self.groups.push(Group {
            total: at.len(),
            first: at,
            rest: self.spare.pop().unwrap_or_default(),
            header: *header,
            hash,
            kind,
            open: kind != Gso::None && !push,
            header_len: payload,
            size,
            next,
            push,
            partial,
        });
        index
    }
}

/// Turns the headers of a group's first packet into those of the merged one, with a partial checksum.
fn write_merged_headers(group: &Group, first: &mut [u8]) -> Option<()> {
    let Header { family, transport, protocol, .. } = group.header;
    let length = group.total - transport;
    let addresses = first.get(place_of_addresses(family))?;
    let pseudo = checksum::pseudo_header_sum(addresses, protocol, u32::try_from(length).ok()?);
    set_total_length(first, group.total)?;
    if protocol == UDP {
        write_word(first, transport + 4, u16::try_from(length).ok()?)?;
    } else if group.push {
        *first.get_mut(transport + 13)? |= PSH;
    }
    let field = transport + checksum_field_offset(protocol)?;
    write_word(first, field, checksum::fold_sum(pseudo))
}

/// A packet that can be merged.
#[derive(Clone, Copy, Default)]
struct Candidate {
    /// The offset of the payload in bytes.
    payload: usize,
    /// The length of the payload in bytes.
    size: usize,
    /// The next sequence number.
    next: u32,
    push: bool,
    sequence: u32,
}

impl Candidate {
    /// `None` for packets that are never merged: without data, with IP options or extension headers, or with
    /// TCP flags other than ACK and PSH. Also `None` for an invalid or missing checksum.
    #[inline]
    fn parse_if_mergeable(
        packet: &[u8],
        header: &Header,
        pseudo: u64,
        trusted: bool,
    ) -> Option<Self> {
        // The transport header must follow the IP header without options or extension headers.
        let plain = header.family.pick(V4_HEADER, V6_HEADER);
        if header.transport != plain {
            return None;
        }
        let transport = packet.get(header.transport..)?;
        let payload = header.payload_offset(packet)?;
        let (sequence, push) = if header.protocol == TCP {
            let head = transport.first_chunk::<20>()?;
            if head[13] != ACK && head[13] != ACK | PSH {
                return None;
            }
            (u32::from_be_bytes([head[4], head[5], head[6], head[7]]), head[13] & PSH != 0)
        } else {
            let head = transport.first_chunk::<8>()?;
            if head[6..8] == [0, 0]
                || usize::from(u16::from_be_bytes([head[4], head[5]])) != transport.len()
            {
                return None;
            }
            (0, false)
        };
        let size = packet.len().checked_sub(payload).filter(|size| *size > 0)?;
        if !trusted
            && checksum::fold_sum(checksum::ones_complement_sum(transport, pseudo)) != 0xffff
        {
            return None;
        }
        let next = sequence.wrapping_add(u32::try_from(size).ok()?);
        Some(Self { payload, size, next, push, sequence })
    }

    /// Whether it continues the group, whose first packet is `first`.
    #[inline]
    fn follows(&self, packet: &[u8], group: &Group, first: &[u8]) -> bool {
        if self.payload != group.header_len
            || self.size > group.size
            || group.total + self.size > LONGEST
        {
            return false;
        }
        let same = |range: Range<usize>| {
            packet.get(range.clone()).is_some_and(|ours| first.get(range) == Some(ours))
        };
        let at = group.header.transport;
        let network = if group.header.family.is_v4() {
            // Version, length and TOS; DF and not a fragment; TTL and protocol; addresses.
            same(0..2) && same(6..10) && same(12..20)
        } else {
            // Version, class and flow label; next header and hop limit; addresses.
            same(0..4) && same(6..40)
        };
        if !network {
            return false;
        }
        if group.header.protocol == TCP {
            // Ports; acknowledgement and header length; window; options. Without URG the urgent pointer has no meaning.
            self.sequence == group.next
                && same(at..at + 4)
                && same(at + 8..at + 13)
                && same(at + 14..at + 16)
                && same(at + 20..self.payload)
        } else {
            same(at..at + 4)
        }
    }
}

#[cfg(test)]
mod tests;
