//! The IP header of an inner packet: parsed strictly, and changed in place.

pub mod checksum;
pub mod ecn;
pub mod framing;
pub mod icmp;
pub mod icmp_limit;
pub mod martian;
pub mod partial_checksum;
pub mod virtio;

use crate::drop_error::DropError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use types::Family;

/// Without options.
pub(crate) const V4_HEADER: usize = 20;
/// Without extension headers.
pub(crate) const V6_HEADER: usize = 40;
/// RFC 792.
pub const ICMP: u8 = 1;
pub(crate) const ICMP_V6: u8 = 58;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// The protocol of a packet with too many or too long extension headers.
pub(crate) const OPAQUE: u8 = 255;

/// Maximum number of extension headers that the parser accepts, and their maximum length in bytes.
const EXTENSIONS: usize = 8;
const EXTENSION_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    No,
    /// With the transport header.
    First,
    /// Without the transport header.
    Later,
}

/// The fields of an IP header that the engine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub family: Family,
    /// The offset of the transport header in bytes, after options or extension headers; never beyond the end of the
    /// packet.
    pub transport: usize,
    /// 255 if the packet has too many or too long extension headers.
    pub protocol: u8,
    /// In bytes; equals the length of the buffer.
    pub total_len: usize,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class; the low two bits are the ECN field.
    pub tos: u8,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// An IPv6 packet with a fragment header is not a fragment if it holds the whole datagram.
    pub fragment: Fragment,
}

impl Header {
    /// The packet must fill its buffer exactly; checksums are left to its receiver. [`DropError::Short`] if it is
    /// shorter than its header, [`DropError::Malformed`] if the version or a length is invalid.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, DropError> {
        let fixed = packet.first_chunk().ok_or(DropError::Short)?;
        match fixed[0] >> 4 {
            4 => Self::parse_v4(packet, fixed),
            6 => Self::parse_v6(packet),
            _ => Err(DropError::Malformed),
        }
    }

    #[inline]
    fn parse_v4(packet: &[u8], fixed: &[u8; V4_HEADER]) -> Result<Self, DropError> {
        let transport = usize::from(fixed[0] & 15) * 4;
        let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if transport < V4_HEADER || total_len != packet.len() || transport > total_len {
            return Err(DropError::Malformed);
        }
        let fragment = match u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff {
            0 => Fragment::No,
            0x2000 => Fragment::First,
            _ => Fragment::Later,
        };
        Ok(Self {
            family: Family::V4,
            transport,
            protocol: fixed[9],
            total_len,
            ttl: fixed[8],
            tos: fixed[1],
            source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
            destination: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
            fragment,
        })
    }

    #[inline]
    fn parse_v6(packet: &[u8]) -> Result<Self, DropError> {
        let fixed: &[u8; V6_HEADER] = packet.first_chunk().ok_or(DropError::Short)?;
        let total_len = V6_HEADER + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        // A jumbogram has a payload length of 0, and fails this check as well.
        if total_len != packet.len() {
            return Err(DropError::Malformed);
        }
        let ([source, destination], _) = fixed[8..].as_chunks::<16>() else {
            return Err(DropError::Short);
        };
        let mut header = Self {
            family: Family::V6,
            transport: V6_HEADER,
            protocol: fixed[6],
            total_len,
            ttl: fixed[7],
            tos: fixed[0] << 4 | fixed[1] >> 4,
            source: Ipv6Addr::from(*source).into(),
            destination: Ipv6Addr::from(*destination).into(),
            fragment: Fragment::No,
        };
        if is_extension(header.protocol) {
            header.skip_extensions(packet)?;
        }
        Ok(header)
    }

    /// Skips extension headers up to the transport header. Beyond the limits, the protocol becomes
    /// [`OPAQUE`].
    fn skip_extensions(&mut self, packet: &[u8]) -> Result<(), DropError> {
        let mut followed = 0;
        while is_extension(self.protocol) && self.fragment != Fragment::Later {
            let start = packet
                .get(self.transport..)
                .and_then(|rest| rest.first_chunk::<8>())
                .ok_or(DropError::Malformed)?;
            let len = match self.protocol {
                FRAGMENT => 8,
                AUTHENTICATION => (usize::from(start[1]) + 2) * 4,
                _ => (usize::from(start[1]) + 1) * 8,
            };
            let end = self.transport + len;
            if followed == EXTENSIONS || end > V6_HEADER + EXTENSION_BYTES {
                self.protocol = OPAQUE;
                return Ok(());
            }
            if end > packet.len() {
                return Err(DropError::Malformed);
            }
            if self.protocol == FRAGMENT {
                self.fragment = match u16::from_be_bytes([start[2], start[3]]) & 0xfff9 {
                    0 => self.fragment,
                    1 => Fragment::First,
                    _ => Fragment::Later,
                };
            }
            self.protocol = start[0];
            self.transport = end;
            followed += 1;
        }
        Ok(())
    }

    /// The offset of the payload of a TCP or UDP packet in bytes, maybe beyond its end. `None` for another
    /// protocol or a TCP header that is too short.
    #[inline]
    pub(crate) fn payload_offset(&self, packet: &[u8]) -> Option<usize> {
        let own = match self.protocol {
            TCP => usize::from(packet.get(self.transport + 12)? >> 4) * 4,
            UDP => return Some(self.transport + 8),
            _ => return None,
        };
        (own >= 20).then_some(self.transport + own)
    }
}

/// The packet length from the IP header in bytes, without padding after the packet.
#[must_use]
pub fn ip_total_length(packet: &[u8]) -> Option<usize> {
    match *packet {
        [first, _, high, low, ..] if first >> 4 == 4 => {
            Some(usize::from(u16::from_be_bytes([high, low])))
        }
        [first, _, _, _, high, low, ..] if first >> 4 == 6 => {
            Some(V6_HEADER + usize::from(u16::from_be_bytes([high, low])))
        }
        _ => None,
    }
}

const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

/// Whether it has the form of an extension header: hop-by-hop, routing, fragment, authentication,
/// destination, mobility, HIP, shim6.
#[inline]
fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | FRAGMENT | AUTHENTICATION | 60 | 135 | 139 | 140)
}

/// `None` beyond the end of `bytes`.
#[inline]
#[must_use]
pub(crate) fn read_word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk::<2>().map(|two| u16::from_be_bytes(*two))
}

/// `None` beyond the end of `bytes`.
#[inline]
pub(crate) fn write_word(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut::<2>()? = value.to_be_bytes();
    Some(())
}

/// Where an IP header has the source and the destination.
#[inline]
pub(crate) fn place_of_addresses(family: Family) -> Range<usize> {
    family.pick(12..V4_HEADER, 8..V6_HEADER)
}

/// Writes the length of a packet into its IP header, and the checksum of an IPv4 header.
#[inline]
pub(crate) fn set_total_length(header: &mut [u8], total: usize) -> Option<()> {
    let first = *header.first()?;
    if first >> 4 == 6 {
        return write_word(header, 4, u16::try_from(total - V6_HEADER).ok()?);
    }
    write_word(header, 2, u16::try_from(total).ok()?)?;
    write_word(header, 10, 0)?;
    let own = header.get(..usize::from(first & 15) * 4)?;
    let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(own, 0));
    write_word(header, 10, sum)
}

/// Updates the IPv4 checksum too. A TTL of 0 stays 0. Only IP packets change.
#[inline]
pub fn decrement_ttl(packet: &mut [u8]) {
    change_header(
        packet,
        |v4| set_v4_word_and_checksum(v4, 8, [v4[8].saturating_sub(1), v4[9]]),
        |v6| v6[7] = v6[7].saturating_sub(1),
    );
}

/// Updates the IPv4 checksum too. Only IP packets change.
#[inline]
pub fn set_ecn(packet: &mut [u8], ecn: u8) {
    let ecn = ecn & 3;
    change_header(
        packet,
        |v4| set_v4_word_and_checksum(v4, 0, [v4[0], v4[1] & !3 | ecn]),
        |v6| v6[1] = v6[1] & !0x30 | ecn << 4,
    );
}

#[inline]
fn change_header(
    packet: &mut [u8],
    v4: impl FnOnce(&mut [u8; V4_HEADER]),
    v6: impl FnOnce(&mut [u8; V6_HEADER]),
) {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            packet.first_chunk_mut().map(v4);
        }
        Some(6) => {
            packet.first_chunk_mut().map(v6);
        }
        _ => (),
    }
}

/// Writes an aligned word of the IPv4 header and updates the checksum. An invalid checksum stays invalid.
#[inline]
fn set_v4_word_and_checksum(fixed: &mut [u8; V4_HEADER], at: usize, word: [u8; 2]) {
    let Some(place) = fixed.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else {
        return;
    };
    let (old, new) = (u16::from_be_bytes(*place), u16::from_be_bytes(word));
    *place = word;
    // An unchanged word must not change the checksum: an update could turn one form of zero into the other.
    if old != new {
        let sum = checksum::updated_checksum(u16::from_be_bytes([fixed[10], fixed[11]]), old, new);
        [fixed[10], fixed[11]] = sum.to_be_bytes();
    }
}

#[cfg(test)]
mod tests;
