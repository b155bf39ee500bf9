//! ICMP errors for packets that the tunnel cannot carry, and the cases in which none may be sent (RFC 1122,
//! 1812, 4443).

use crate::packet::checksum;
use crate::packet::martian::is_martian;
use crate::packet::{Fragment, Header, ICMP, ICMP_V6, OPAQUE, V4_HEADER, V6_HEADER, Version};
use crate::verdict::Icmp;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
    match (source, header.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => reply_v4(icmp, offender, header, from, to, out),
        (IpAddr::V6(from), IpAddr::V6(to)) => reply_v6(icmp, offender, from, to, out),
        _ => None,
    }
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
    match (header.version, header.protocol) {
        // Queries and their replies. All other types are errors, or may be newer errors.
        (Version::V4, ICMP) => {
            kind.is_some_and(|kind| matches!(kind, 0 | 8 | 9 | 10 | 13..=18 | 42 | 43))
        }
        // Types below 128 are errors; 137 is a redirect.
        (Version::V6, ICMP_V6) => kind.is_some_and(|kind| *kind >= 128 && *kind != 137),
        // The extension headers were not followed to their end, so an ICMP error may come after them.
        (Version::V6, OPAQUE) => false,
        _ => true,
    }
}

fn reply_v4(
    icmp: Icmp,
    offender: &[u8],
    header: &Header,
    from: Ipv4Addr,
    to: Ipv4Addr,
    out: &mut [u8],
) -> Option<usize> {
    let room = out.len().min(V4_MAX).checked_sub(V4_HEADER + ICMP_HEADER)?;
    let quote = offender.get(..offender.len().min(room))?;
    // The sender needs the first 8 bytes after the header to find its socket.
    if quote.len() < offender.len().min(header.header_len + 8) {
        return None;
    }
    let total = V4_HEADER + ICMP_HEADER + quote.len();
    let (ip, message) = out.get_mut(..total)?.split_first_chunk_mut::<V4_HEADER>()?;
    let (kind, code, mtu) = match icmp {
        Icmp::NetUnreachable => (3, 0, 0),
        Icmp::TimeExceeded => (11, 0, 0),
        Icmp::TooBig(mtu) => (3, 4, mtu),
    };
    write_message(message, kind, code, mtu, quote, 0)?;
    let [len_high, len_low] = u16::try_from(total).ok()?.to_be_bytes();
    // The packet is never fragmented, so it needs no identification.
    *ip = [0x45, TOS, len_high, len_low, 0, 0, 0x40, 0, TTL, ICMP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..].copy_from_slice(&to.octets());
    let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(&ip[..], 0));
    [ip[10], ip[11]] = sum.to_be_bytes();
    Some(total)
}

fn reply_v6(
    icmp: Icmp,
    offender: &[u8],
    from: Ipv6Addr,
    to: Ipv6Addr,
    out: &mut [u8],
) -> Option<usize> {
    let room = out.len().min(V6_MAX).checked_sub(V6_HEADER + ICMP_HEADER)?;
    let quote = offender.get(..offender.len().min(room))?;
    if quote.len() < offender.len().min(V6_HEADER + 8) {
        return None;
    }
    let total = V6_HEADER + ICMP_HEADER + quote.len();
    let (ip, message) = out.get_mut(..total)?.split_first_chunk_mut::<V6_HEADER>()?;
    let (kind, code, mtu) = match icmp {
        Icmp::NetUnreachable => (1, 0, 0),
        Icmp::TimeExceeded => (3, 0, 0),
        Icmp::TooBig(mtu) => (2, 0, mtu),
    };
    let len = u16::try_from(message.len()).ok()?;
    write_message(
        message,
        kind,
        code,
        mtu,
        quote,
        checksum::pseudo_header_sum(&from.octets(), &to.octets(), ICMP_V6, u32::from(len)),
    )?;
    let [len_high, len_low] = len.to_be_bytes();
    ip[..8].copy_from_slice(&[0x60 | TOS >> 4, TOS << 4, 0, 0, len_high, len_low, ICMP_V6, TTL]);
    ip[8..24].copy_from_slice(&from.octets());
    ip[24..].copy_from_slice(&to.octets());
    Some(total)
}

/// Writes the ICMP message with the quoted packet. In both families, the MTU is in the last two bytes of the
/// second 32-bit word.
fn write_message(
    message: &mut [u8],
    kind: u8,
    code: u8,
    mtu: u16,
    quote: &[u8],
    initial: u64,
) -> Option<()> {
    let [mtu_high, mtu_low] = mtu.to_be_bytes();
    let (head, body) = message.split_first_chunk_mut::<ICMP_HEADER>()?;
    *head = [kind, code, 0, 0, 0, 0, mtu_high, mtu_low];
    body.get_mut(..quote.len())?.copy_from_slice(quote);
    let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(message, initial));
    message.get_mut(2..4)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests;
