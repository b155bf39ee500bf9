//! Lengths of messages, their class of service, and the padding of packets.

use noise::Kind;

/// Number of bytes that a data message adds: type, receiver and counter before the packet, and the tag after the packet.
pub(super) const OVERHEAD: usize = crate::framing::WIREGUARD;
/// Buffer size in bytes for any message except data messages. The longest message is an initiation.
pub(super) const LONGEST: usize = 148;
/// Granularity of the padding of inner packets, in bytes.
const PADDING: usize = 16;

/// TOS octet of handshake messages: AF41, as in the kernel. This class of service lets nodes renew sessions even when a link is congested.
const HANDSHAKE: u8 = 0x88;

/// Returns the TOS octet of a datagram.
pub(crate) fn tos(datagram: &[u8]) -> u8 {
    match datagram.first() {
        Some(kind) if *kind != Kind::Data as u8 => HANDSHAKE,
        _ => 0,
    }
}

/// Returns the length of an inner packet with its padding, in bytes. Padding hides the exact length but never makes a packet longer than the MTU.
#[inline]
pub(super) fn padded(length: usize, mtu: u16) -> usize {
    length.next_multiple_of(PADDING).min(usize::from(mtu)).max(length)
}
