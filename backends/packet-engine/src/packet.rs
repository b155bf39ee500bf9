//! The IP header of an inner packet: read strictly, and changed in place without touching the rest.

use super::checksum;
use crate::reason::Reason;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an IPv4 header without options.
pub const V4_HEADER: usize = 20;
/// Bytes of the fixed IPv6 header.
pub const V6_HEADER: usize = 40;
/// ICMP's protocol number.
pub const ICMP: u8 = 1;
/// ICMPv6's.
pub const ICMP_V6: u8 = 58;
/// In the place of the protocol where the extension headers were too many or too long to be followed.
pub const OPAQUE: u8 = 255;

/// How many extension headers are followed, and how many bytes of them.
const EXTENSIONS: usize = 8;
const EXTENSION_BYTES: usize = 512;

/// The IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// All of it.
    No,
    /// The one that has the transport header.
    First,
    /// One that has none.
    Later,
}

/// What the engine reads of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// IP version.
    pub version: Version,
    /// The IPv4 header with its options; 40 for IPv6.
    pub header_len: usize,
    /// Where the transport header is, after the extension headers; never beyond the packet's end.
    pub transport: usize,
    /// What is there; 255 where the extension headers could not be followed.
    pub protocol: u8,
    /// Length of the whole packet, which is the buffer's.
    pub total_len: usize,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class, whose low two bits are ECN.
    pub tos: u8,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Whether and which fragment. An IPv6 fragment that is the whole datagram is none, though its header is there.
    pub fragment: Fragment,
}

impl Header {
    /// Reads the header of a packet that fills its buffer exactly. Checksums are the receiver's.
    ///
    /// # Errors
    /// `Short` where not even a header fits, `Malformed` where a length or the version is a lie.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, Reason> {
        let fixed = packet.first_chunk().ok_or(Reason::Short)?;
        match fixed[0] >> 4 {
            4 => Self::parse_v4(packet, fixed),
            6 => Self::parse_v6(packet),
            _ => Err(Reason::Malformed),
        }
    }

    #[inline]
    fn parse_v4(packet: &[u8], fixed: &[u8; V4_HEADER]) -> Result<Self, Reason> {
        let header_len = usize::from(fixed[0] & 15) * 4;
        let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if header_len < V4_HEADER || total_len != packet.len() || header_len > total_len {
            return Err(Reason::Malformed);
        }
        let fragment = match u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff {
            0 => Fragment::No,
            0x2000 => Fragment::First,
            _ => Fragment::Later,
        };
        Ok(Self {
            version: Version::V4,
            header_len,
            transport: header_len,
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
    fn parse_v6(packet: &[u8]) -> Result<Self, Reason> {
        let fixed: &[u8; V6_HEADER] = packet.first_chunk().ok_or(Reason::Short)?;
        let total_len = V6_HEADER + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        // A jumbogram says 0 and has more.
        if total_len != packet.len() {
            return Err(Reason::Malformed);
        }
        let (source, rest) = fixed[8..].split_first_chunk::<16>().ok_or(Reason::Short)?;
        let destination: &[u8; 16] = rest.first_chunk().ok_or(Reason::Short)?;
        let mut header = Self {
            version: Version::V6,
            header_len: V6_HEADER,
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

    /// Goes on to the transport header, or to where the chain is too long to be followed.
    fn skip_extensions(&mut self, packet: &[u8]) -> Result<(), Reason> {
        let mut followed = 0;
        while is_extension(self.protocol) && self.fragment != Fragment::Later {
            let start = packet.get(self.transport..).and_then(|rest| rest.first_chunk::<8>()).ok_or(Reason::Malformed)?;
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
                return Err(Reason::Malformed);
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
}

const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

/// Hop-by-hop, routing, fragment, authentication, destination, mobility, HIP, shim6: what has the form of an extension header.
#[inline]
fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | FRAGMENT | AUTHENTICATION | 60 | 135 | 139 | 140)
}

/// One hop less, and the IPv4 checksum to match; 0 stays 0. What is no IP packet stays as it is.
#[inline]
pub fn decrement_ttl(packet: &mut [u8]) {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            if let Some(fixed) = packet.first_chunk_mut::<V4_HEADER>() {
                let ttl = fixed[8].saturating_sub(1);
                set_v4(fixed, 8, [ttl, fixed[9]]);
            }
        }
        Some(6) => {
            if let Some(fixed) = packet.first_chunk_mut::<V6_HEADER>() {
                fixed[7] = fixed[7].saturating_sub(1);
            }
        }
        _ => (),
    }
}

/// Sets the ECN field and the IPv4 checksum to match. What is no IP packet stays as it is.
#[inline]
pub fn set_ecn(packet: &mut [u8], ecn: u8) {
    let ecn = ecn & 3;
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            if let Some(fixed) = packet.first_chunk_mut::<V4_HEADER>() {
                set_v4(fixed, 0, [fixed[0], fixed[1] & !3 | ecn]);
            }
        }
        Some(6) => {
            if let Some(fixed) = packet.first_chunk_mut::<V6_HEADER>() {
                fixed[1] = fixed[1] & !0x30 | ecn << 4;
            }
        }
        _ => (),
    }
}

/// Writes an aligned word of the IPv4 header and repairs the checksum; a wrong one stays wrong.
#[inline]
fn set_v4(fixed: &mut [u8; V4_HEADER], at: usize, word: [u8; 2]) {
    let Some(place) = fixed.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else { return };
    let (old, new) = (u16::from_be_bytes(*place), u16::from_be_bytes(word));
    *place = word;
    // A word that stays leaves the checksum alone, whichever form of zero it has.
    if old != new {
        let sum = checksum::update(u16::from_be_bytes([fixed[10], fixed[11]]), old, new);
        [fixed[10], fixed[11]] = sum.to_be_bytes();
    }
}

#[cfg(test)]
mod tests;
