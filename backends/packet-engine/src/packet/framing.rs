//! Headers between the outer UDP header and the inner packet: flannel's `udp` has none, and `vxlan` has VXLAN
//! and Ethernet headers (RFC 7348).

use crate::drop_error::DropError;
use crate::packet::ip_total_length;
use types::Family;

/// The VXLAN and Ethernet headers in bytes.
pub const VXLAN: usize = 8 + 14;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// The payload is the IP packet itself.
    Udp,
    /// The payload is an Ethernet frame in VXLAN.
    Vxlan {
        /// 24 bits; packets with another VNI are dropped.
        vni: u32,
        /// The MAC of this node's VTEP; frames to other MACs are dropped.
        mac: [u8; 6],
    },
    /// The payload is a message that [`crate::encryption`] seals for one peer.
    Sealed {
        /// Bytes that sealing adds to a packet.
        overhead: usize,
        /// The kind of kernel interface that may use the tunnel's port.
        rival: Rival,
    },
}

/// A kind of kernel interface that may use the tunnel's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rival {
    /// With the command that lists it: `ss` shows no program for its port.
    pub interface: &'static str,
    /// The key of the network configuration that sets another port.
    pub key: &'static str,
}

impl Framing {
    /// The kind of kernel interface that may use the tunnel's port.
    #[must_use]
    pub fn possible_port_holder(&self) -> Rival {
        match self {
            Framing::Udp | Framing::Vxlan { .. } => {
                Rival { interface: "a vxlan interface (`ip -d link show type vxlan`)", key: "Port" }
            }
            Framing::Sealed { rival, .. } => *rival,
        }
    }

    /// Bytes that the framing adds to each packet.
    #[must_use]
    pub fn overhead(&self) -> usize {
        match self {
            Framing::Udp => 0,
            Framing::Vxlan { .. } => VXLAN,
            Framing::Sealed { overhead, .. } => *overhead,
        }
    }

    /// Writes the headers of a packet to the VTEP `to` and returns their length in bytes. It is 0 if the
    /// framing has no headers, or `out` is shorter than [`VXLAN`].
    #[inline]
    pub fn write(&self, to: [u8; 6], family: Family, out: &mut [u8]) -> usize {
        let Framing::Vxlan { vni, mac } = self else {
            return 0;
        };
        let Some(out) = out.first_chunk_mut::<VXLAN>() else {
            return 0;
        };
        let [_, v0, v1, v2] = vni.to_be_bytes();
        let [t0, t1, t2, t3, t4, t5] = to;
        let [m0, m1, m2, m3, m4, m5] = *mac;
        let [k0, k1] = family.pick([0x08, 0x00], [0x86, 0xdd]);
        *out = [8, 0, 0, 0, v0, v1, v2, 0, t0, t1, t2, t3, t4, t5, m0, m1, m2, m3, m4, m5, k0, k1];
        VXLAN
    }

    /// The IP packet in a datagram. Fails if the headers are invalid, or if only a session can decrypt it.
    #[inline]
    pub fn strip(&self, datagram: &[u8]) -> Result<std::ops::Range<usize>, DropError> {
        let (vni, mac) = match self {
            Framing::Udp => return Ok(0..datagram.len()),
            Framing::Vxlan { vni, mac } => (vni, mac),
            // Only a session with the sender can decrypt the datagram.
            Framing::Sealed { .. } => return Err(DropError::BadHeader),
        };
        let Some((head, packet)) = datagram.split_first_chunk::<VXLAN>() else {
            return Err(DropError::Short);
        };
        let [flags, _, _, _, v0, v1, v2, _, to @ .., k0, k1] = head;
        // Reserved bits and fields are ignored on receipt (RFC 7348, 5).
        if flags & 8 == 0 {
            return Err(DropError::BadHeader);
        }
        if u32::from_be_bytes([0, *v0, *v1, *v2]) != *vni {
            return Err(DropError::BadVni);
        }
        if to.first_chunk::<6>() != Some(mac) {
            return Err(DropError::WrongMac);
        }
        let version = packet.first().map_or(0, |first| first >> 4);
        let length = match ([*k0, *k1], version) {
            ([0x08, 0x00], 4) | ([0x86, 0xdd], 6) => ip_total_length(packet),
            ([0x08, 0x00] | [0x86, 0xdd], _) => None,
            _ => return Err(DropError::NotIp),
        };
        let length = length.ok_or(DropError::Malformed)?;
        // Short frames may be padded. Bytes after the packet are not part of it.
        Ok(VXLAN..VXLAN + length.min(packet.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn strip_changed_frame(
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<std::ops::Range<usize>, DropError> {
        let framing = Framing::Vxlan { vni: 0x0001_0203, mac: MAC };
        let mut datagram = vec![0; VXLAN];
        assert_eq!(framing.write(MAC, Family::V4, &mut datagram), VXLAN);
        datagram.extend([0x45, 0, 0, 20]);
        datagram.extend([0; 16]);
        change(&mut datagram);
        framing.strip(&datagram)
    }

    #[test]
    fn invalid_frames_are_dropped() {
        assert_eq!(strip_changed_frame(|_| ()), Ok(22..42));
        assert_eq!(strip_changed_frame(|d| d.extend([0; 18])), Ok(22..42), "padding is removed");
        assert_eq!(
            strip_changed_frame(|d| d[1..4].fill(0xff)),
            Ok(22..42),
            "the engine ignores reserved bits"
        );
        assert_eq!(strip_changed_frame(|d| d[0] = 0xf7), Err(DropError::BadHeader));
        assert_eq!(strip_changed_frame(|d| d[6] = 0), Err(DropError::BadVni));
        assert_eq!(strip_changed_frame(|d| d[8] = 0xff), Err(DropError::WrongMac));
        assert_eq!(strip_changed_frame(|d| d[21] = 6), Err(DropError::NotIp), "ARP");
        assert_eq!(strip_changed_frame(|d| d[22] = 0x65), Err(DropError::Malformed));
        assert_eq!(strip_changed_frame(|d| d.truncate(21)), Err(DropError::Short));
        assert_eq!(strip_changed_frame(|d| d.truncate(22)), Err(DropError::Malformed));
        assert_eq!(Framing::Udp.strip(&[1, 2, 3]), Ok(0..3));
        assert_eq!((Framing::Udp.overhead(), Framing::Udp.write(MAC, Family::V6, &mut [])), (0, 0));
    }
}
