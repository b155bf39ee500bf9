//! Merges packets of one batch into GSO packets for the TUN device. A GSO packet has the headers of the first
//! packet and the payload of all.
//!
//! A packet is added only to the latest group of its flow, so the order within a flow stays the same. Only
//! UDP datagrams and plain data of established TCP streams are merged; the rest passes unchanged. The merger
//! verifies a checksum first, because a GSO packet implies a correct one. A partial checksum (see
//! [`crate::packet::partial_checksum`]) needs no verification and stays partial.

use crate::flow::schedule::FlowSchedule;
use crate::flow::{self, SLOTS};
use crate::packet::checksum;
use crate::packet::partial_checksum::{self, checksum_field_offset};
use crate::packet::virtio::{Gso, VnetHeader};
use crate::packet::{
    Fragment, Header, TCP, UDP, V4_HEADER, V6_HEADER, place_of_addresses, set_total_length,
    write_word,
};
use std::ops::Range;
use types::Family;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Maximum number of segments in a GSO packet.
pub const SEGMENTS: usize = 64;
/// The longest IP packet in bytes: its length field has 16 bits.
const LONGEST: usize = 65_535;

/// One write to the TUN device: a single packet or a merged one. All ranges refer to the batch's buffer.
#[derive(Default)]
pub struct Group {
    /// The first packet with its headers.
    pub first: Range<usize>,
    /// The payload of the other packets.
    pub rest: Vec<Range<usize>>,
    kind: Gso,
    /// Whether it accepts more packets.
    open: bool,
    header_len: usize,
    transport: usize,
    protocol: u8,
    /// The payload length of the first packet in bytes.
    size: usize,
    /// The length of the merged packet in bytes, with headers.
    total: usize,
    /// The TCP sequence number that would continue the group.
    next: u32,
    push: bool,
    /// Whether the first packet's checksum is partial.
    partial: bool,
    /// Whether it was received as one GSO packet.
    whole: bool,
}

impl Group {
    /// The packets that peers sent, including those inside a received GSO packet.
    #[must_use]
    pub fn count(&self) -> usize {
        if self.whole {
            self.total.saturating_sub(self.header_len).div_ceil(self.size.max(1))
        } else {
            1 + self.rest.len()
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
}

/// Merges the packets of one batch.
pub struct Merger {
    groups: Vec<Group>,
    used: usize,
    /// The latest group of each flow. If two flows share a slot, fewer of their packets are merged.
    slots: [Option<usize>; SLOTS],
    schedule: FlowSchedule,
    merge_tcp: bool,
    merge_udp: bool,
    checksums_trusted: bool,
}

impl Merger {
    #[must_use]
    pub fn new(merge_tcp: bool, merge_udp: bool) -> Self {
        Self {
            groups: Vec::new(),
            used: 0,
            slots: [None; SLOTS],
            schedule: FlowSchedule::default(),
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
        self.used = 0;
        self.slots = [None; SLOTS];
        self.schedule.clear();
    }

    /// Determines the order of the groups, after all packets were offered.
    pub(crate) fn order_small_flows_first(&mut self) {
        self.schedule.order_small_flows_first();
    }

    /// The index of the group at a position of the order.
    #[inline]
    pub(crate) fn group_at(&self, position: usize) -> usize {
        self.schedule.unit_at(position)
    }

    /// In the order of arrival.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        self.groups.get(..self.used).unwrap_or_default()
    }

    /// Adds the packet at `at` in `buffer`.
    pub fn merge_or_add_packet(&mut self, buffer: &[u8], at: Range<usize>, header: &Header) {
        let Some(packet) = buffer.get(at.clone()) else {
            return;
        };
        if header.fragment != Fragment::No {
            // The flow of a fragment is unknown. Later packets must not be merged with earlier ones, and must not overtake them.
            self.slots = [None; SLOTS];
            self.schedule.keep_order();
            self.push_new_group(at, header, 0, None, false);
            return;
        }
        let slot = flow::flow_table_slot(packet, header);
        self.schedule.add_flow_bytes(slot, at.len());
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
                candidate.size == group.size && !candidate.push && group.count() < SEGMENTS;
            return;
        }
        let index = self.push_new_group(at, header, slot, candidate, partial);
        if let (true, Some(place)) = (wanted, self.slots.get_mut(slot)) {
            *place = Some(index);
        }
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
        let slot = flow::flow_table_slot(packet, header);
        self.schedule.add_flow_bytes(slot, at.len());
        let index = self.push_new_group(at, header, slot, None, true);
        if let Some(group) = self.groups.get_mut(index) {
            group.kind = Gso::of_protocol(header);
            group.header_len = header.payload_offset(packet).unwrap_or(header.transport);
            group.size = size;
            group.whole = true;
        }
        // No packet is merged with the GSO packet, and later packets of its flow are not merged with earlier ones.
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(index);
        }
    }

    fn push_new_group(
        &mut self,
        at: Range<usize>,
        header: &Header,
        slot: usize,
        candidate: Option<Candidate>,
        partial: bool,
    ) -> usize {
        self.schedule.add_unit_of_flow(slot);
        let index = self.used;
        if self.groups.len() == index {
            self.groups.push(Group::default());
        }
        self.used += 1;
        let Some(group) = self.groups.get_mut(index) else {
            return index;
        };
        let mergeable = candidate.is_some();
        let Candidate { payload, size, next, push, .. } =
            candidate.unwrap_or(Candidate { payload: header.transport, ..Candidate::default() });
        group.rest.clear();
        group.total = at.len();
        group.first = at;
        group.kind = if mergeable { Gso::of_protocol(header) } else { Gso::None };
        group.partial = partial;
        group.whole = false;
        group.open = mergeable && !push;
        group.push = push;
        group.transport = header.transport;
        group.protocol = header.protocol;
        group.header_len = payload;
        group.size = size;
        group.next = next;
        index
    }

    /// Adapts the headers of a group's first packet for the write, and returns the virtio header. `None` if
    /// the group is not of this buffer.
    pub fn finish_group_headers(&self, index: usize, buffer: &mut [u8]) -> Option<VnetHeader> {
        let group = self.groups.get(index)?;
        if !group.rest.is_empty() {
            write_merged_headers(group, buffer.get_mut(group.first.clone())?)?;
        } else if !group.partial {
            return Some(VnetHeader::default());
        }
        let vnet = VnetHeader {
            needs_csum: true,
            csum_start: u16::try_from(group.transport).ok()?,
            csum_offset: u16::try_from(checksum_field_offset(group.protocol)?).ok()?,
            ..VnetHeader::default()
        };
        if group.kind() == Gso::None {
            return Some(vnet);
        }
        Some(VnetHeader {
            gso: group.kind,
            header_len: u16::try_from(group.header_len).ok()?,
            gso_size: u16::try_from(group.size).ok()?,
            ..vnet
        })
    }
}

/// Turns the headers of a group's first packet into those of the merged one, with a partial checksum.
fn write_merged_headers(group: &Group, first: &mut [u8]) -> Option<()> {
    let length = group.total - group.transport;
    // Packets with IP options or extension headers are not merged.
    let family = if group.transport == V4_HEADER { Family::V4 } else { Family::V6 };
    let addresses = first.get(place_of_addresses(family))?;
    let pseudo =
        checksum::pseudo_header_sum(addresses, group.protocol, u32::try_from(length).ok()?);
    set_total_length(first, group.total)?;
    if group.protocol == UDP {
        write_word(first, group.transport + 4, u16::try_from(length).ok()?)?;
    } else if group.push {
        *first.get_mut(group.transport + 13)? |= PSH;
    }
    let field = group.transport + checksum_field_offset(group.protocol)?;
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
        if header.transport != plain || header.header_len != plain {
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
        let at = group.transport;
        let network = if at == 20 {
            // Version, length and TOS; DF and not a fragment; TTL and protocol; addresses.
            same(0..2) && same(6..10) && same(12..20)
        } else {
            // Version, class and flow label; next header and hop limit; addresses.
            same(0..4) && same(6..40)
        };
        if !network {
            return false;
        }
        if group.protocol == TCP {
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
