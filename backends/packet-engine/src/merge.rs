//! Merges packets of one batch into GSO packets for the TUN device. A GSO packet has the headers of the first
//! packet and the payload of all.
//!
//! A packet is added only to the latest group of its flow, so the order within a flow stays the same. Only
//! UDP datagrams and plain data of established TCP streams are merged; the rest passes unchanged. The merger
//! verifies a checksum first, because a GSO packet implies a correct one. A partial checksum (see
//! [`crate::packet::partial_checksum`]) needs no verification and stays partial.

use crate::flow::schedule::FlowSchedule;
use crate::flow::{self, SLOTS, TCP, UDP, write_word};
use crate::packet::checksum;
use crate::packet::partial_checksum::{self, TCP_FIELD, UDP_FIELD};
use crate::packet::virtio::{Gso, VnetHeader};
use crate::packet::{Fragment, Header, Version};
use std::ops::Range;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Maximum number of segments in a GSO packet.
pub const SEGMENTS: usize = 64;
/// The longest IP packet in bytes: its length field has 16 bits.
const LONGEST: usize = 65_535;
const NO_GROUP: u16 = u16::MAX;

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
    slots: [u16; SLOTS],
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
            slots: [NO_GROUP; SLOTS],
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
        self.slots = [NO_GROUP; SLOTS];
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
            self.slots = [NO_GROUP; SLOTS];
            self.schedule.keep_order();
            self.schedule.add_unit_of_flow(0);
            self.push_new_group(at, header, None, false);
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
        if !wanted {
            self.schedule.add_unit_of_flow(slot);
            self.push_new_group(at, header, None, partial);
            return;
        }
        let candidate = pseudo.and_then(|pseudo| {
            Candidate::parse_if_mergeable(packet, header, pseudo, partial || self.checksums_trusted)
        });
        let latest = self.slots.get(slot).copied().unwrap_or(NO_GROUP);
        if let (Some(candidate), Some(group)) = (
            &candidate,
            self.groups.get_mut(..self.used).and_then(|all| all.get_mut(usize::from(latest))),
        ) && group.open
            && let Some(first) = buffer.get(group.first.clone())
            && candidate.follows(packet, group, first)
        {
            group.rest.push(at.start + candidate.payload..at.end);
            group.total += candidate.size;
            group.next = group.next.wrapping_add(u32::try_from(candidate.size).unwrap_or(0));
            group.push |= candidate.push;
            group.open =
                candidate.size == group.size && !candidate.push && group.count() < SEGMENTS;
            return;
        }
        self.schedule.add_unit_of_flow(slot);
        let index = self.push_new_group(at, header, candidate.as_ref(), partial);
        if let Some(place) = self.slots.get_mut(slot) {
            *place = index;
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
        self.schedule.add_unit_of_flow(slot);
        let own = if header.protocol == TCP {
            usize::from(packet.get(header.transport + 12).copied().unwrap_or(0) >> 4) * 4
        } else {
            8
        };
        let index = self.push_new_group(at, header, None, true);
        if let Some(group) = self.groups.get_mut(usize::from(index)) {
            group.kind = gso_kind(header);
            group.header_len = header.transport + own;
            group.size = size;
            group.whole = true;
        }
        // No packet is merged with the GSO packet, and later packets of its flow are not merged with earlier ones.
        if let Some(place) = self.slots.get_mut(slot) {
            *place = index;
        }
    }

    fn push_new_group(
        &mut self,
        at: Range<usize>,
        header: &Header,
        candidate: Option<&Candidate>,
        partial: bool,
    ) -> u16 {
        let index = self.used;
        if self.groups.len() == index {
            self.groups.push(Group::default());
        }
        self.used += 1;
        let Some(group) = self.groups.get_mut(index) else {
            return NO_GROUP;
        };
        group.rest.clear();
        group.total = at.len();
        group.first = at;
        group.kind = if candidate.is_some() { gso_kind(header) } else { Gso::None };
        group.partial = partial;
        group.whole = false;
        group.open = candidate.is_some_and(|candidate| !candidate.push);
        group.push = candidate.is_some_and(|candidate| candidate.push);
        group.transport = header.transport;
        group.protocol = header.protocol;
        group.header_len = candidate.map_or(header.transport, |candidate| candidate.payload);
        group.size = candidate.map_or(0, |candidate| candidate.size);
        group.next = candidate.map_or(0, |candidate| candidate.next);
        u16::try_from(index).unwrap_or(NO_GROUP)
    }

    /// Adapts the headers of a group's first packet for the write, and returns the virtio header. `None` if
    /// the group is not of this buffer.
    pub fn finish_group_headers(&self, index: usize, buffer: &mut [u8]) -> Option<VnetHeader> {
        let group = self.groups.get(index)?;
        if group.rest.is_empty() {
            return unmerged_vnet_header(group);
        }
        write_merged_headers(group, buffer.get_mut(group.first.clone())?)
    }
}

fn gso_kind(header: &Header) -> Gso {
    match (header.protocol, header.version) {
        (UDP, _) => Gso::Udp,
        (_, Version::V4) => Gso::Tcp4,
        (_, Version::V6) => Gso::Tcp6,
    }
}

/// The virtio header of a packet that stays alone and unchanged.
fn unmerged_vnet_header(group: &Group) -> Option<VnetHeader> {
    if !group.partial {
        return Some(VnetHeader::default());
    }
    let plain = VnetHeader {
        needs_csum: true,
        csum_start: u16::try_from(group.transport).ok()?,
        csum_offset: u16::try_from(partial_checksum::checksum_field_offset(group.protocol)?)
            .ok()?,
        ..VnetHeader::default()
    };
    if group.kind() == Gso::None {
        return Some(plain);
    }
    Some(VnetHeader {
        gso: group.kind,
        header_len: u16::try_from(group.header_len).ok()?,
        gso_size: u16::try_from(group.size).ok()?,
        ..plain
    })
}

fn write_merged_headers(group: &Group, first: &mut [u8]) -> Option<VnetHeader> {
    let length = group.total - group.transport;
    let protocol = group.protocol;
    let pseudo = match group.kind {
        Gso::Tcp6 => checksum::pseudo_header_sum(
            first.get(8..24)?,
            first.get(24..40)?,
            protocol,
            u32::try_from(length).ok()?,
        ),
        Gso::Udp if first.first()? >> 4 == 6 => checksum::pseudo_header_sum(
            first.get(8..24)?,
            first.get(24..40)?,
            protocol,
            u32::try_from(length).ok()?,
        ),
        _ => checksum::pseudo_header_sum(
            first.get(12..16)?,
            first.get(16..20)?,
            protocol,
            u32::try_from(length).ok()?,
        ),
    };
    if first.first()? >> 4 == 4 {
        write_word(first, 2, u16::try_from(group.total).ok()?)?;
        write_word(first, 10, 0)?;
        let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(
            first.get(..group.transport)?,
            0,
        ));
        write_word(first, 10, sum)?;
    } else {
        write_word(first, 4, u16::try_from(group.total - 40).ok()?)?;
    }
    let csum_offset = if protocol == TCP {
        if group.push {
            *first.get_mut(group.transport + 13)? |= PSH;
        }
        TCP_FIELD
    } else {
        write_word(first, group.transport + 4, u16::try_from(length).ok()?)?;
        UDP_FIELD
    };
    write_word(first, group.transport + csum_offset, checksum::fold_sum(pseudo))?;
    Some(VnetHeader {
        needs_csum: true,
        gso: group.kind,
        header_len: u16::try_from(group.header_len).ok()?,
        gso_size: u16::try_from(group.size).ok()?,
        csum_start: u16::try_from(group.transport).ok()?,
        csum_offset: u16::try_from(csum_offset).ok()?,
    })
}

/// A packet that can be merged.
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
        let plain = if header.version == Version::V4 { 20 } else { 40 };
        if header.transport != plain || header.header_len != plain {
            return None;
        }
        let transport = packet.get(header.transport..)?;
        let (own, sequence, push) = if header.protocol == TCP {
            let head = transport.first_chunk::<20>()?;
            let own = usize::from(head[12] >> 4) * 4;
            if own < 20 || (head[13] != ACK && head[13] != ACK | PSH) {
                return None;
            }
            (own, u32::from_be_bytes([head[4], head[5], head[6], head[7]]), head[13] & PSH != 0)
        } else {
            let head = transport.first_chunk::<8>()?;
            if head[6..8] == [0, 0]
                || usize::from(u16::from_be_bytes([head[4], head[5]])) != transport.len()
            {
                return None;
            }
            (8, 0, false)
        };
        let size = transport.len().checked_sub(own).filter(|size| *size > 0)?;
        if !trusted
            && checksum::fold_sum(checksum::ones_complement_sum(transport, pseudo)) != 0xffff
        {
            return None;
        }
        let next = sequence.wrapping_add(u32::try_from(size).ok()?);
        Some(Self { payload: header.transport + own, size, next, push, sequence })
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
