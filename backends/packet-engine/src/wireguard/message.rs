//! Lengths of messages, their class of service, and the padding of packets.

use noise::Kind;

/// The bytes that a data message adds: type, receiver and counter before, the tag behind.
pub(super) const OVERHEAD: usize = crate::framing::WIREGUARD;
/// Room for any message of the protocol without data. The longest is an initiation.
pub(super) const LONGEST: usize = 148;
/// Inner packets are padded to a multiple of this.
const PADDING: usize = 16;

/// The TOS octet of handshakes, as of the kernel's: AF41, so that a full link does not keep sessions from being renewed.
const HANDSHAKE: u8 = 0x88;

/// The TOS octet of a datagram.
pub(crate) fn tos(datagram: &[u8]) -> u8 {
    match datagram.first() {
        Some(kind) if *kind != Kind::Data as u8 => HANDSHAKE,
        _ => 0,
    }
}

/// The length of an inner packet with its padding, which hides the exact length but never makes a packet longer than the MTU.
#[inline]
pub(super) fn padded(length: usize, mtu: u16) -> usize {
    length
        .next_multiple_of(PADDING)
        .min(usize::from(mtu))
        .max(length)
}
