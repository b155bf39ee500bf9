//! The virtio-net header before each packet of a TUN device opened with `IFF_VNET_HDR` (virtio 1.2, 5.1.6;
//! linux/virtio_net.h).

use crate::packet::{Header, TCP, UDP};
use types::Family;

/// In bytes, without the count of merged buffers (`num_buffers`).
pub const LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_ECN: u8 = 0x80;

/// How the kernel segments a packet (`gso_type` of the virtio header).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gso {
    /// A single packet.
    #[default]
    None = 0,
    /// TCP segments over IPv4.
    Tcp4 = 1,
    /// TCP segments over IPv6.
    Tcp6 = 4,
    /// UDP datagrams.
    Udp = 5,
}

impl Gso {
    /// How the kernel segments packets with this header; [`Gso::None`] if it cannot.
    #[inline]
    pub(crate) fn of_protocol(header: &Header) -> Self {
        match (header.protocol, header.family) {
            (UDP, _) => Gso::Udp,
            (TCP, Family::V4) => Gso::Tcp4,
            (TCP, Family::V6) => Gso::Tcp6,
            _ => Gso::None,
        }
    }
}

/// `struct virtio_net_hdr`, which precedes each packet on the TUN device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VnetHeader {
    /// Whether the checksum at `csum_start + csum_offset` is partial: it holds only the pseudo header's sum.
    pub(crate) needs_csum: bool,
    pub gso: Gso,
    /// The packet's headers in bytes, according to the sender.
    pub header_len: u16,
    /// The payload length of each segment in bytes.
    pub gso_size: u16,
    /// The offset in bytes of the data that the checksum covers.
    pub(crate) csum_start: u16,
    /// The offset in bytes of the checksum from `csum_start`.
    pub(crate) csum_offset: u16,
}

impl VnetHeader {
    /// `None` if the buffer is shorter than [`LEN`], or for a segmentation type that the engine did not
    /// request (UFO).
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let [flags, kind, h0, h1, g0, g1, s0, s1, o0, o1, ..] = *bytes else {
            return None;
        };
        let gso = match kind & !GSO_ECN {
            0 => Gso::None,
            1 => Gso::Tcp4,
            4 => Gso::Tcp6,
            5 => Gso::Udp,
            _ => return None,
        };
        Some(Self {
            needs_csum: flags & NEEDS_CSUM != 0,
            gso,
            header_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        })
    }

    /// With fields in the byte order of this host.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let [h0, h1] = self.header_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        let flags = if self.needs_csum { NEEDS_CSUM } else { 0 };
        [flags, self.gso as u8, h0, h1, g0, g1, s0, s1, o0, o1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtio_header_is_read_back() {
        for gso in [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp] {
            let header = VnetHeader {
                needs_csum: true,
                gso,
                header_len: 52,
                gso_size: 1400,
                csum_start: 20,
                csum_offset: 16,
            };
            assert_eq!(VnetHeader::parse(&header.bytes()), Some(header));
        }
        assert_eq!(VnetHeader::parse(&[0; 9]), None);
        assert_eq!(
            VnetHeader::parse(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]),
            None,
            "the engine did not request UFO"
        );
    }
}
