//! Splits GSO packets of the TUN device into packets for the wire. Headers are generated for each segment;
//! the payload is not copied.

use crate::drop_error::DropError;
use crate::packet::checksum;
use crate::packet::partial_checksum::{TCP_FIELD, UDP_FIELD};
use crate::packet::virtio::{Gso, VnetHeader};
use crate::packet::{
    Fragment, Header, TCP, UDP, place_of_addresses, read_word, set_total_length, write_word,
};
use std::ops::Range;

/// The longest IP and transport headers of a GSO packet in bytes, with IPv6 extension headers.
pub const HEADERS: usize = 192;

/// TCP flags that only the last segment keeps.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
/// The TCP flag that only the first segment keeps.
const CWR: u8 = 0x80;

/// How a packet of the TUN device goes on the wire: split into segments, or unchanged as the only one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segments {
    /// The header of the packet.
    pub header: Header,
    pub count: usize,
    /// The offset of the payload in bytes; 0 if the packet is sent unchanged.
    payload: usize,
    /// The payload of each segment in bytes; the last one may be shorter.
    size: usize,
    /// The sum over the pseudo header, without the transport length.
    pseudo: u64,
}

/// Completes the checksum of a single packet, or determines how to split a GSO packet. [`DropError::BadOffload`]
/// if the virtio header does not match the packet.
///
/// ```
/// use etherparse::PacketBuilder;
/// use packet_engine::packet::Header;
/// use packet_engine::split::{HEADERS, plan_split_or_complete_checksum};
/// use packet_engine::packet::virtio::{Gso, VnetHeader};
///
/// let mut packet = Vec::new();
/// let datagram = PacketBuilder::ipv4([10, 244, 1, 7], [10, 244, 2, 7], 64).udp(5000, 53);
/// datagram.write(&mut packet, &[0; 2500])?;
/// let mut vnet = VnetHeader::default();
/// (vnet.gso, vnet.gso_size) = (Gso::Udp, 1000);
/// let header = Header::parse(&packet).unwrap();
/// let segments = plan_split_or_complete_checksum(&vnet, &header, &mut packet).unwrap();
/// assert_eq!(segments.count, 3);
/// // The last one has headers of 28 bytes, and the last 500 bytes of the payload.
/// let mut headers = [0; HEADERS];
/// assert_eq!(segments.write_headers(2, &packet, &mut headers), Some((28, 2028..2528)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan_split_or_complete_checksum(
    vnet: &VnetHeader,
    header: &Header,
    packet: &mut [u8],
) -> Result<Segments, DropError> {
    let unchanged =
        Segments { header: *header, count: 1, payload: 0, size: packet.len(), pseudo: 0 };
    if vnet.gso == Gso::None {
        if vnet.needs_csum {
            complete_checksum(vnet.csum_start.into(), vnet.csum_offset.into(), packet)?;
        }
        return Ok(unchanged);
    }
    if vnet.gso != Gso::of_protocol(header) || header.fragment != Fragment::No || vnet.gso_size == 0
    {
        return Err(DropError::BadOffload);
    }
    let payload = header
        .payload_offset(packet)
        .filter(|payload| *payload <= HEADERS.min(packet.len()))
        .ok_or(DropError::BadOffload)?;
    let size = usize::from(vnet.gso_size);
    let count = (packet.len() - payload).div_ceil(size);
    if count > 1 {
        let addresses =
            packet.get(place_of_addresses(header.family)).ok_or(DropError::BadOffload)?;
        let pseudo = checksum::pseudo_header_sum(addresses, header.protocol, 0);
        return Ok(Segments { header: *header, count, payload, size, pseudo });
    }
    // A GSO packet with a single segment also has a partial checksum.
    if vnet.needs_csum {
        let field = if header.protocol == TCP { TCP_FIELD } else { UDP_FIELD };
        complete_checksum(header.transport, field, packet)?;
    }
    Ok(unchanged)
}

/// Completes the partial checksum at `start + offset`, which covers the packet from `start` on.
fn complete_checksum(start: usize, offset: usize, packet: &mut [u8]) -> Result<(), DropError> {
    let covered = packet.get(start..).ok_or(DropError::BadOffload)?;
    let mut sum = checksum::checksum_from_sum(checksum::ones_complement_sum(covered, 0));
    if offset == UDP_FIELD && sum == 0 {
        // In UDP zero means "no checksum" (RFC 768).
        sum = 0xffff;
    }
    write_word(packet, start + offset, sum).ok_or(DropError::BadOffload)
}

impl Segments {
    /// In bytes: a full segment with IP and transport headers, or the unchanged packet.
    #[inline]
    #[must_use]
    pub fn full_packet_len(&self) -> usize {
        self.payload + self.size
    }

    /// Writes the headers of segment `index` to `out`. Returns their length, and what follows them in
    /// `packet`: the segment's payload, or all of an unchanged packet. `None` if `packet` or `out` is too short.
    #[inline]
    pub fn write_headers(
        &self,
        index: usize,
        packet: &[u8],
        out: &mut [u8],
    ) -> Option<(usize, Range<usize>)> {
        if self.count == 1 {
            return Some((0, 0..packet.len()));
        }
        let Header { family, protocol, transport, total_len, .. } = self.header;
        let start = self.payload + index * self.size;
        let end = (start + self.size).min(total_len);
        let last = end == total_len;
        let payload = packet.get(start..end)?;
        let head = out.get_mut(..self.payload)?;
        head.copy_from_slice(packet.get(..self.payload)?);
        let total = self.payload + payload.len();
        if family.is_v4() {
            let id = read_word(head, 4)?.wrapping_add(u16::try_from(index).ok()?);
            write_word(head, 4, id)?;
        }
        set_total_length(head, total)?;
        let length = total - transport;
        let field = if protocol == TCP {
            let at = transport + 4;
            let number =
                u32::from(read_word(head, at)?) << 16 | u32::from(read_word(head, at + 2)?);
            let number = number.wrapping_add(u32::try_from(index * self.size).ok()?);
            head.get_mut(at..at + 4)?.copy_from_slice(&number.to_be_bytes());
            let flags = head.get_mut(transport + 13)?;
            if !last {
                *flags &= !(FIN | PSH);
            }
            if index != 0 {
                *flags &= !CWR;
            }
            transport + TCP_FIELD
        } else {
            write_word(head, transport + 4, u16::try_from(length).ok()?)?;
            transport + UDP_FIELD
        };
        write_word(head, field, 0)?;
        // Sums are over words in memory order, so the length's is right on machines of either byte order.
        let length = checksum::pseudo_header_sum(&[], 0, u32::try_from(length).ok()?);
        let sum = checksum::ones_complement_sum(head.get(transport..)?, self.pseudo + length);
        let mut sum = checksum::checksum_from_sum(checksum::ones_complement_sum(payload, sum));
        if protocol == UDP && sum == 0 {
            sum = 0xffff;
        }
        write_word(head, field, sum)?;
        Some((self.payload, start..end))
    }

    /// Writes all of segment `index` to `out`, and returns its length in bytes.
    #[inline]
    pub(crate) fn write_packet(
        &self,
        index: usize,
        packet: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        let (own, payload) = self.write_headers(index, packet, out)?;
        let end = own + payload.len();
        out.get_mut(own..end)?.copy_from_slice(packet.get(payload)?);
        Some(end)
    }
}

#[cfg(test)]
pub(super) mod tests;
