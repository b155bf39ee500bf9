//! Partial checksums, which the sender's kernel leaves to the network card to complete. A virtual link such
//! as veth has no card for this. The field then holds only the pseudo header's sum, as with
//! `VIRTIO_NET_HDR_F_NEEDS_CSUM`. Kernel vxlan on a veth sends all TCP and UDP packets so, including GSO
//! packets.
//!
//! One in 65536 complete checksums looks partial. It may be treated as partial, because completion does not
//! change it.

use crate::packet::checksum;
use crate::packet::{Fragment, Header, TCP, UDP, place_of_addresses, read_word};

/// The offset in the TCP header in bytes.
pub(crate) const TCP_FIELD: usize = 16;
/// The offset in the UDP header in bytes.
pub(crate) const UDP_FIELD: usize = 6;

/// The offset in the transport header; `None` for protocols without an Internet checksum there. For SCTP, a
/// vxlan device has no offload of the CRC, so the sending kernel completes it.
#[inline]
#[must_use]
pub fn checksum_field_offset(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(TCP_FIELD),
        UDP => Some(UDP_FIELD),
        _ => None,
    }
}

/// The sum of the pseudo header of an unfragmented TCP or UDP packet.
#[inline]
#[must_use]
pub fn packet_pseudo_header_sum(packet: &[u8], header: &Header) -> Option<u64> {
    if header.fragment != Fragment::No {
        return None;
    }
    checksum_field_offset(header.protocol)?;
    let addresses = packet.get(place_of_addresses(header.family))?;
    let length = u32::try_from(packet.len().checked_sub(header.transport)?).ok()?;
    Some(checksum::pseudo_header_sum(addresses, header.protocol, length))
}

#[inline]
pub(crate) fn is_partial(packet: &[u8], header: &Header, pseudo: u64) -> bool {
    let Some(found) = checksum_field_offset(header.protocol)
        .and_then(|at| read_word(packet, header.transport + at))
    else {
        return false;
    };
    // In UDP, zero means "no checksum" (RFC 768). Ones' complement has two zeros, and incremental updates produce either.
    if header.protocol == UDP && found == 0 {
        return false;
    }
    found % 0xffff == checksum::fold_sum(pseudo) % 0xffff
}

#[inline]
pub(crate) fn has_partial_checksum(packet: &[u8], header: &Header) -> bool {
    packet_pseudo_header_sum(packet, header)
        .is_some_and(|pseudo| is_partial(packet, header, pseudo))
}

/// The segment size for a TCP packet longer than the tunnel's MTU. On a virtual link, the sender's kernel
/// forwards GSO packets without it; TCP works with any.
#[inline]
#[must_use]
pub fn tcp_gso_segment_size(packet: &[u8], header: &Header, mtu: u16) -> Option<usize> {
    if packet.len() <= usize::from(mtu)
        || header.protocol != TCP
        || !has_partial_checksum(packet, header)
    {
        return None;
    }
    let payload = header.payload_offset(packet).filter(|payload| *payload < packet.len())?;
    usize::from(mtu).checked_sub(payload).filter(|size| *size > 0)
}

/// Whether a UDP packet can be a GSO packet whose datagrams have `size` bytes of payload each. The kernel
/// reports this size in the same field as that of datagrams that it coalesced.
#[inline]
pub(crate) fn may_be_udp_gso_packet(packet: &[u8], header: &Header, size: usize) -> bool {
    let length = packet.len().saturating_sub(header.transport);
    header.protocol == UDP
        && size > 0
        && length > 8 + size
        && read_word(packet, header.transport + 4).map(usize::from) == Some(length)
        && has_partial_checksum(packet, header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::tests::any_packet_recipe;
    use proptest::prelude::*;

    fn packet_has_partial_checksum(packet: &[u8]) -> bool {
        has_partial_checksum(packet, &Header::parse(packet).unwrap())
    }

    proptest! {

        /// A wrong checksum is never taken for a partial one, whichever bits differ. A complete one is only
        /// if completion does not change it.
        #[test]
        fn only_the_pseudo_headers_sum_is_partial(recipe in any_packet_recipe(1500), bits in 1u16..) {
            let partial = recipe.packet_with_partial_checksum();
            prop_assert!(packet_has_partial_checksum(&partial));
            let at = recipe.transport_offset() + if recipe.tcp { TCP_FIELD } else { UDP_FIELD };
            let mut wrong = partial.clone();
            wrong[at] ^= bits.to_be_bytes()[0];
            wrong[at + 1] ^= bits.to_be_bytes()[1];
            let zeros = |packet: &[u8]| matches!(packet[at..at + 2], [0, 0] | [0xff, 0xff]);
            prop_assert!(!packet_has_partial_checksum(&wrong) || zeros(&wrong) && zeros(&partial));
            let complete = recipe.packet();
            prop_assert!(!packet_has_partial_checksum(&complete) || complete[at..at + 2] == partial[at..at + 2]);
            let mut fragment = partial;
            if !recipe.ipv6 {
                fragment[6] = 0x20;
                prop_assert!(!packet_has_partial_checksum(&fragment));
            }
        }
    }

    #[test]
    fn udp_without_checksum_is_not_partial() {
        // With these addresses, the pseudo header's sum is 0xffff, the other zero.
        let mut packet = vec![
            0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 5, 1, 2, 10, 5, 2, 2, 1, 2, 3, 4, 0, 9,
            0, 0, 7,
        ];
        let header = Header::parse(&packet).unwrap();
        let rest = 0xffff - checksum::fold_sum(packet_pseudo_header_sum(&packet, &header).unwrap())
            + 0x0202;
        packet[18..20].copy_from_slice(&rest.to_be_bytes());
        let header = Header::parse(&packet).unwrap();
        assert_eq!(checksum::fold_sum(packet_pseudo_header_sum(&packet, &header).unwrap()), 0xffff);
        assert!(!has_partial_checksum(&packet, &header));
        packet[26..28].fill(0xff);
        assert!(has_partial_checksum(&packet, &header));
    }

    #[test]
    fn a_super_packet_is_cut_to_the_mtu() {
        let recipe = crate::split::tests::Recipe {
            ipv6: false,
            tcp: true,
            sequence: 1,
            flags: 0x18,
            options: 3,
            id: 9,
            payload: vec![7; 9000],
        };
        let size =
            |packet: &[u8], mtu| tcp_gso_segment_size(packet, &Header::parse(packet).unwrap(), mtu);
        assert_eq!(size(&recipe.packet_with_partial_checksum(), 1450), Some(1450 - 52));
        assert_eq!(size(&recipe.packet_with_partial_checksum(), 9052), None, "it fits");
        assert_eq!(size(&recipe.packet(), 1450), None, "a complete checksum");
        assert_eq!(size(&recipe.packet_with_partial_checksum(), 52), None, "no room for payload");
        let datagram = crate::split::tests::Recipe { tcp: false, ..recipe };
        let packet = datagram.packet_with_partial_checksum();
        let header = Header::parse(&packet).unwrap();
        assert_eq!(size(&packet, 1450), None, "the segment size of UDP is unknown");
        assert!(
            may_be_udp_gso_packet(&packet, &header, 1000)
                && !may_be_udp_gso_packet(&packet, &header, 0)
                && !may_be_udp_gso_packet(&packet, &header, 9000)
        );
        assert!(!may_be_udp_gso_packet(&datagram.packet(), &header, 1000));
    }
}
