//! The flow of a packet, and access to words in packets.

use super::packet::{Fragment, Header, Version};
use std::net::SocketAddr;
use std::ops::Range;

/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of UDP.
pub const UDP: u8 = 17;
/// The protocol number of SCTP.
const SCTP: u8 = 132;

/// A hash that is equal for all packets of a flow: of addresses, protocol and ports. Fragments are hashed without ports, as only the first has them.
#[inline]
pub fn hash(packet: &[u8], header: &Header) -> u32 {
    let addresses = if header.version == Version::V4 {
        12..20
    } else {
        8..40
    };
    let ports = match (header.protocol, header.fragment) {
        (TCP | UDP | SCTP, Fragment::No) => header.transport..header.transport + 4,
        _ => 0..0,
    };
    let words = |range: Range<usize>| packet.get(range).unwrap_or_default().chunks_exact(4);
    words(addresses)
        .chain(words(ports))
        .fold(u32::from(header.protocol), |hash, word| {
            let word = word
                .first_chunk::<4>()
                .map_or(0, |word| u32::from_be_bytes(*word));
            (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b1)
        })
}

/// Up to this length a packet may be a message.
pub(crate) const MESSAGE: usize = 512;

/// Whether somebody most likely waits for a packet: it is short, and no bare acknowledgement of TCP's, which belongs to a stream.
#[inline]
pub(crate) fn is_message(packet: &[u8], header: &Header) -> bool {
    let is_bare = || {
        let offset = packet
            .get(header.transport + 12)
            .map_or(0, |byte| byte >> 4);
        header.transport + usize::from(offset) * 4 >= header.total_len
    };
    header.total_len <= MESSAGE && !(header.protocol == TCP && is_bare())
}

/// The number of slots in tables of the flows of one batch. Two flows may share a slot.
pub(crate) const SLOTS: usize = 64;

/// The slot of a flow.
#[inline]
pub fn slot(packet: &[u8], header: &Header) -> usize {
    (hash(packet, header) >> 16) as usize % SLOTS
}

/// Which of several queues a flow belongs to. Not the bits of [`slot`]: the flows of one queue share all slots.
#[inline]
pub(crate) fn queue(packet: &[u8], header: &Header, queues: usize) -> usize {
    (hash(packet, header) >> 24) as usize % queues.max(1)
}

/// Where a UDP packet goes. None: another protocol, or a later fragment, which has no ports.
#[inline]
pub(crate) fn udp_destination(packet: &[u8], header: &Header) -> Option<SocketAddr> {
    if header.protocol != UDP || header.fragment == Fragment::Later {
        return None;
    }
    word(packet, header.transport + 2).map(|port| SocketAddr::new(header.destination, port))
}

/// The 16-bit word at an offset.
#[inline]
pub fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk::<2>()
        .map(|two| u16::from_be_bytes(*two))
}

/// Writes the 16-bit word at an offset.
#[inline]
pub fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut::<2>()? = value.to_be_bytes();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::tests::Recipe;

    #[test]
    fn message_is_short_and_carries_data() {
        let is = |tcp, ipv6, options, payload: usize| {
            let recipe = Recipe {
                ipv6,
                tcp,
                sequence: 1,
                flags: 0x10,
                options,
                id: 0,
                payload: vec![7; payload],
            };
            let packet = recipe.packet();
            is_message(&packet, &Header::parse(&packet).unwrap())
        };
        for ipv6 in [false, true] {
            // A datagram is a message without data, too.
            assert!(is(false, ipv6, 0, 0) && is(false, ipv6, 0, 400));
            assert!(is(true, ipv6, 0, 1) && is(true, ipv6, 10, 400));
            assert!(!is(true, ipv6, 0, 0) && !is(true, ipv6, 10, 0));
            assert!(!is(true, ipv6, 0, 1400) && !is(false, ipv6, 0, 1400));
        }
    }
}
