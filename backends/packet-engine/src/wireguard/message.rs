//! Lengths of messages, their class of service, and the padding of packets.

use noise::Kind;

/// Bytes that a data message adds: type, receiver and counter before the packet, and the tag after it.
pub(super) const OVERHEAD: usize = crate::packet::framing::WIREGUARD;
/// The longest message except data messages in bytes: an initiation.
pub(super) const LONGEST: usize = 148;
/// Granularity of the padding of inner packets, in bytes.
const PADDING: usize = 16;

/// AF41, as in the kernel, so that nodes renew sessions even when a link is congested.
const HANDSHAKE: u8 = 0x88;

/// The TOS octet of a datagram.
pub(crate) fn tos(datagram: &[u8]) -> u8 {
    match datagram.first() {
        Some(kind) if *kind != Kind::Data as u8 => HANDSHAKE,
        _ => 0,
    }
}

/// In bytes. Padding hides the exact length but never makes a packet longer than the MTU.
#[inline]
pub(super) fn padded(length: usize, mtu: u16) -> usize {
    length.next_multiple_of(PADDING).min(usize::from(mtu)).max(length)
}
