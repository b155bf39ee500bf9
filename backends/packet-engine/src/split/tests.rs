//! The split of a GSO packet yields the single packets that the sender would have sent without GSO.

use super::*;
use crate::drop_error::DropError;
use proptest::prelude::*;

/// Parameters of a generated packet, for the tests of splitting and of merging.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub ipv6: bool,
    pub tcp: bool,
    pub sequence: u32,
    pub flags: u8,
    pub options: usize,
    pub id: u16,
    pub payload: Vec<u8>,
}

impl Recipe {
    pub(crate) fn transport_offset(&self) -> usize {
        if self.ipv6 { 40 } else { 20 }
    }

    /// A segment of a TCP stream over IPv4, with a payload of sevens.
    pub(crate) fn ipv4_tcp_segment(sequence: u32, length: usize) -> Self {
        Self {
            ipv6: false,
            tcp: true,
            sequence,
            flags: 0x10,
            options: 3,
            id: 1,
            payload: vec![7; length],
        }
    }

    /// The sum of the pseudo header, the protocol, and the place of the checksum.
    fn pseudo_sum_and_checksum_offset(&self, packet: &[u8]) -> (u64, usize) {
        let addresses = if self.ipv6 { &packet[8..40] } else { &packet[12..20] };
        let (protocol, at) = if self.tcp { (TCP, 16) } else { (UDP, 6) };
        let length = packet.len() - self.transport_offset();
        (
            checksum::pseudo_header_sum(addresses, protocol, length as u32),
            self.transport_offset() + at,
        )
    }

    fn headers_len(&self) -> usize {
        self.transport_offset() + if self.tcp { 20 + self.options * 4 } else { 8 }
    }

    /// With correct checksums.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let total = self.headers_len() + self.payload.len();
        let length = total - self.transport_offset();
        let protocol = if self.tcp { TCP } else { UDP };
        let mut out = if self.ipv6 {
            let mut out = vec![0x60, 0, 0, 0];
            out.extend((length as u16).to_be_bytes());
            out.extend([protocol, 63]);
            out.extend([0xfd; 16]);
            out.extend([0xfc; 16]);
            out
        } else {
            let mut out = vec![0x45, 0];
            out.extend((total as u16).to_be_bytes());
            out.extend(self.id.to_be_bytes());
            out.extend([0x40, 0, 63, protocol, 0, 0, 10, 5, 1, 2, 10, 5, 2, 2]);
            let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(&out, 0));
            out[10..12].copy_from_slice(&sum.to_be_bytes());
            out
        };
        if self.tcp {
            out.extend([0x9c, 0x40, 0x14, 0x51]);
            out.extend(self.sequence.to_be_bytes());
            out.extend([0, 0, 0, 7, ((5 + self.options) << 4) as u8, self.flags, 1, 0, 0, 0, 0, 0]);
            out.extend(std::iter::repeat_n(1, self.options * 4));
        } else {
            out.extend([0x9c, 0x40, 0x14, 0x51]);
            out.extend((length as u16).to_be_bytes());
            out.extend([0, 0]);
        }
        out.extend(&self.payload);
        let (pseudo, at) = self.pseudo_sum_and_checksum_offset(&out);
        let mut sum = checksum::checksum_from_sum(checksum::ones_complement_sum(
            &out[self.transport_offset()..],
            pseudo,
        ));
        if !self.tcp && sum == 0 {
            sum = 0xffff;
        }
        out[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        out
    }

    pub(crate) fn packet_with_partial_checksum(&self) -> Vec<u8> {
        let mut out = self.packet();
        let (pseudo, at) = self.pseudo_sum_and_checksum_offset(&out);
        out[at..at + 2].copy_from_slice(&checksum::fold_sum(pseudo).to_be_bytes());
        out
    }

    fn gso(&self) -> Gso {
        match (self.tcp, self.ipv6) {
            (false, _) => Gso::Udp,
            (true, false) => Gso::Tcp4,
            (true, true) => Gso::Tcp6,
        }
    }

    pub(crate) fn gso_vnet_header(&self, size: usize) -> VnetHeader {
        VnetHeader {
            needs_csum: true,
            gso: self.gso(),
            header_len: self.headers_len() as u16,
            gso_size: size as u16,
            csum_start: self.transport_offset() as u16,
            csum_offset: if self.tcp { 16 } else { 6 },
        }
    }

    /// The single packets of this GSO packet, with `size` bytes of payload each.
    pub(crate) fn segment_packets(&self, size: usize) -> Vec<Vec<u8>> {
        let chunks: Vec<&[u8]> = self.payload.chunks(size).collect();
        let single = |(index, chunk): (usize, &&[u8])| {
            let mut flags = self.flags;
            if index + 1 < chunks.len() {
                flags &= !(FIN | PSH);
            }
            if index > 0 {
                flags &= !CWR;
            }
            let sequence = self.sequence.wrapping_add((index * size) as u32);
            Recipe {
                payload: chunk.to_vec(),
                flags,
                sequence,
                id: self.id.wrapping_add(index as u16),
                ..self.clone()
            }
            .packet()
        };
        chunks.iter().enumerate().map(single).collect()
    }
}

pub(crate) fn any_packet_recipe(longest: usize) -> impl Strategy<Value = Recipe> {
    let flags = prop_oneof![4 => Just(0x10u8), 4 => Just(0x18), 1 => Just(0x11), 1 => Just(0x90)];
    (
        any::<bool>(),
        any::<bool>(),
        any::<u32>(),
        flags,
        0usize..8,
        any::<u16>(),
        proptest::collection::vec(any::<u8>(), 1..longest),
    )
        .prop_map(|(ipv6, tcp, sequence, flags, options, id, payload)| Recipe {
            ipv6,
            tcp,
            sequence,
            flags,
            options,
            id,
            payload,
        })
}

/// The single packets of a packet with a virtio header.
pub(crate) fn split_into_packets(
    vnet: &VnetHeader,
    packet: &mut [u8],
) -> Result<Vec<Vec<u8>>, DropError> {
    let header = Header::parse(packet)?;
    let segments = plan_split_or_complete_checksum(vnet, &header, packet)?;
    let single = |index| {
        let mut room = [0; HEADERS];
        let (made, payload) = segments.write_headers(index, packet, &mut room).unwrap();
        [&room[..made], &packet[payload]].concat()
    };
    Ok((0..segments.count).map(single).collect())
}

proptest! {

    #[test]
    fn segments_are_the_single_packets(recipe in any_packet_recipe(9000), size in 1usize..2000) {
        prop_assert_eq!(split_into_packets(&recipe.gso_vnet_header(size), &mut recipe.packet_with_partial_checksum()), Ok(recipe.segment_packets(size)));
    }

    #[test]
    fn a_partial_checksum_is_completed(recipe in any_packet_recipe(1500)) {
        let vnet = VnetHeader { gso: Gso::None, gso_size: 0, ..recipe.gso_vnet_header(0) };
        prop_assert_eq!(split_into_packets(&vnet, &mut recipe.packet_with_partial_checksum()), Ok(vec![recipe.packet()]));
        prop_assert_eq!(split_into_packets(&VnetHeader::default(), &mut recipe.packet()), Ok(vec![recipe.packet()]), "a complete one is not changed");
    }

    /// No resulting packet is longer than the original either.
    #[test]
    fn split_never_panics(head in any::<[u8; 10]>(), kind in 0u8..6, mut packet in proptest::collection::vec(any::<u8>(), 0..300), v6 in any::<bool>(), protocol in prop_oneof![Just(6u8), Just(17), any::<u8>()]) {
        let mut head = head;
        head[1] = kind;
        let length = packet.len() as u16;
        if v6 && packet.len() >= 40 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(length - 40).to_be_bytes());
            packet[6] = protocol;
        } else if packet.len() >= 20 {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&length.to_be_bytes());
            packet[9] = protocol;
        }
        if let Some(vnet) = VnetHeader::parse(&head) && let Ok(parts) = split_into_packets(&vnet, &mut packet) {
            prop_assert!(parts.iter().all(|part| part.len() <= packet.len()));
        }
    }
}

#[test]
fn wrong_virtio_headers_are_refused() {
    let recipe = Recipe::ipv4_tcp_segment(1, 3000);
    let changes: [fn(&mut VnetHeader); 5] = [
        |vnet| vnet.gso_size = 0,
        |vnet| vnet.gso = Gso::Udp,
        |vnet| vnet.gso = Gso::Tcp6,
        |vnet| (vnet.gso, vnet.csum_start) = (Gso::None, 5000),
        |vnet| (vnet.gso, vnet.csum_offset) = (Gso::None, 5000),
    ];
    for change in changes {
        let mut wrong = recipe.gso_vnet_header(1000);
        change(&mut wrong);
        assert_eq!(
            split_into_packets(&wrong, &mut recipe.packet_with_partial_checksum()),
            Err(DropError::BadOffload),
            "{wrong:?}"
        );
    }
}
