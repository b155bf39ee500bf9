//! ICMP errors for packets that the tunnel cannot carry, and the cases in which none may be sent (RFC 1122,
//! 1812, 4443).

use crate::packet::checksum;
use crate::packet::martian::is_martian;
use crate::packet::{
    Fragment, Header, ICMP, ICMP_V6, OPAQUE, V4_HEADER, V6_HEADER, set_total_length, write_word,
};
use crate::verdict::Icmp;
use std::net::IpAddr;
use types::Family;

/// The longest IPv4 error in bytes: every host accepts it without fragmentation.
pub const V4_MAX: usize = 576;
/// The longest IPv6 error in bytes: the minimum MTU of a link.
pub const V6_MAX: usize = 1280;
/// In bytes, before the quoted packet, in both families.
const ICMP_HEADER: usize = 8;
const TTL: u8 = 64;
/// Internetwork control, the TOS of messages from routers.
const TOS: u8 = 0xc0;

/// Writes the IP packet that reports an error to the sender of `offender`, and returns its length in bytes.
/// `source` is this node's own address on the tunnel. `None` if no error may be sent, `source` is of the
/// other family, or `out` is too small.
pub fn write_error_packet(
    icmp: Icmp,
    offender: &[u8],
    header: &Header,
    source: IpAddr,
    out: &mut [u8],
) -> Option<usize> {
    if !may_report_error(offender, header) {
        return None;
    }
    let (ip_header, most) = header.family.pick((V4_HEADER, V4_MAX), (V6_HEADER, V6_MAX));
    let room = out.len().min(most).checked_sub(ip_header + ICMP_HEADER)?;
    let quote = offender.get(..offender.len().min(room))?;
    // The sender needs the first 8 bytes after the header to find its socket.
    let own = header.family.pick(header.transport, V6_HEADER);
    if quote.len() < offender.len().min(own + 8) {
        return None;
    }
    let total = ip_header + ICMP_HEADER + quote.len();
    let (ip, message) = out.get_mut(..total)?.split_at_mut_checked(ip_header)?;
    let pseudo = match (source, header.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = ip.first_chunk_mut::<V4_HEADER>()?;
            // The packet is never fragmented, so it needs no identification.
            *ip = [0x45, TOS, 0, 0, 0, 0, 0x40, 0, TTL, ICMP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..].copy_from_slice(&to.octets());
            0
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = ip.first_chunk_mut::<V6_HEADER>()?;
            ip[..8].copy_from_slice(&[0x60 | TOS >> 4, TOS << 4, 0, 0, 0, 0, ICMP_V6, TTL]);
            ip[8..24].copy_from_slice(&from.octets());
            ip[24..].copy_from_slice(&to.octets());
            checksum::pseudo_header_sum(&ip[8..], ICMP_V6, u32::try_from(message.len()).ok()?)
        }
        _ => return None,
    };
    set_total_length(ip, total)?;
    let (kind, code, mtu) = match (icmp, header.family) {
        (Icmp::NetUnreachable, Family::V4) => (3, 0, 0),
        (Icmp::NetUnreachable, Family::V6) => (1, 0, 0),
        (Icmp::TimeExceeded, Family::V4) => (11, 0, 0),
        (Icmp::TimeExceeded, Family::V6) => (3, 0, 0),
        (Icmp::TooBig(mtu), Family::V4) => (3, 4, mtu),
        (Icmp::TooBig(mtu), Family::V6) => (2, 0, mtu),
    };
    // In both families, the MTU is in the last two bytes of the second 32-bit word.
    let [mtu_high, mtu_low] = mtu.to_be_bytes();
    let (head, body) = message.split_first_chunk_mut::<ICMP_HEADER>()?;
    *head = [kind, code, 0, 0, 0, 0, mtu_high, mtu_low];
    body.copy_from_slice(quote);
    let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(message, pseudo));
    write_word(message, 2, sum)?;
    Some(total)
}

/// Whether an error about this packet may go to its source.
fn may_report_error(offender: &[u8], header: &Header) -> bool {
    if header.fragment == Fragment::Later
        || is_martian(&header.source)
        || is_martian(&header.destination)
    {
        return false;
    }
    let kind = offender.get(header.transport);
    match (header.family, header.protocol) {
        // Queries and their replies. All other types are errors, or may be newer errors.
        (Family::V4, ICMP) => {
            kind.is_some_and(|kind| matches!(kind, 0 | 8 | 9 | 10 | 13..=18 | 42 | 43))
        }
        // Types below 128 are errors; 137 is a redirect.
        (Family::V6, ICMP_V6) => kind.is_some_and(|kind| *kind >= 128 && *kind != 137),
        // The extension headers were not followed to their end, so an ICMP error may come after them.
        (Family::V6, OPAQUE) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
