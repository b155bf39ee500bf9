use super::*;
use crate::packet::checksum::{checksum_from_sum, fold_sum, ones_complement_sum};
use etherparse::{IpSlice, PacketBuilder};
use proptest::collection::vec;
use proptest::prelude::*;

fn v6_packet(next: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, (body.len() >> 8) as u8, body.len() as u8, next, 64];
    packet.extend([0xfd; 16]);
    packet.extend([0xfc; 16]);
    packet.extend(body);
    packet
}

/// Extension headers with the given kinds and length bytes, followed by the payload.
fn v6_packet_with_extensions(headers: &[(u8, u8)], last: u8, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (n, (kind, len)) in headers.iter().enumerate() {
        let bytes = match kind {
            44 => 8,
            51 => 8 + 4 * usize::from(*len),
            _ => 8 + 8 * usize::from(*len),
        };
        let at = body.len();
        body.resize(at + bytes, 0);
        body[at] = headers.get(n + 1).map_or(last, |(kind, _)| *kind);
        // In a fragment header the second byte is reserved, and the third and fourth are offset and flag.
        body[at + 1] = *len;
    }
    body.extend(payload);
    v6_packet(headers.first().map_or(last, |(kind, _)| *kind), &body)
}

fn any_packet_bytes() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => proptest::sample::select(vec![0u8, 43, 44, 51, 60, 135, 139, 140]), 1 => any::<u8>()];
    let headers = vec((kind, prop_oneof![6 => 0u8..3, 1 => any::<u8>()]), 0..11);
    let v6 = (headers, any::<u8>(), vec(any::<u8>(), 0..40))
        .prop_map(|(headers, last, payload)| v6_packet_with_extensions(&headers, last, &payload));
    let v4 = (5u8..16, vec(any::<u8>(), 20..100)).prop_map(|(words, mut packet)| {
        packet[0] = 0x40 | words;
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet
    });
    prop_oneof![v6, v4, vec(any::<u8>(), 0..100)]
}

proptest! {

    #[test]
    fn only_the_ttl_is_decremented(packet in any_packet_bytes()) {
        let mut after = packet.clone();
        decrement_ttl(&mut after);
        let Ok(header) = Header::parse(&packet) else {
            return Ok(());
        };
        prop_assert_eq!(Header::parse(&after), Ok(Header { ttl: header.ttl.saturating_sub(1), ..header }));
        let touched: &[usize] = if header.family.is_v4() { &[8, 10, 11] } else { &[7] };
        prop_assert!((0..packet.len()).all(|at| packet[at] == after[at] || touched.contains(&at)));
    }

    #[test]
    fn a_correct_checksum_stays_correct(mut packet in vec(any::<u8>(), 20..60), ecn: u8) {
        packet[0] = 0x45;
        packet[10..12].fill(0);
        let right = checksum_from_sum(ones_complement_sum(&packet[..20], 0)).to_be_bytes();
        packet[10..12].copy_from_slice(&right);
        set_ecn(&mut packet, ecn);
        decrement_ttl(&mut packet);
        // The updated checksum must equal a newly calculated one.
        let patched = [packet[10], packet[11]];
        packet[10..12].fill(0);
        prop_assert_eq!(patched, checksum_from_sum(ones_complement_sum(&packet[..20], 0)).to_be_bytes());
    }

    #[test]
    fn a_wrong_checksum_stays_wrong(mut packet in vec(any::<u8>(), 20..60), ecn: u8) {
        packet[0] = 0x45;
        let before = fold_sum(ones_complement_sum(&packet[..20], 0)) % 0xffff;
        set_ecn(&mut packet, ecn);
        decrement_ttl(&mut packet);
        prop_assert_eq!(fold_sum(ones_complement_sum(&packet[..20], 0)) % 0xffff, before);
    }

    #[test]
    fn only_ecn_is_set(packet in any_packet_bytes(), ecn: u8) {
        let mut after = packet.clone();
        set_ecn(&mut after, ecn);
        let Ok(header) = Header::parse(&packet) else {
            return Ok(());
        };
        prop_assert_eq!(Header::parse(&after), Ok(Header { tos: header.tos & 0xfc | ecn & 3, ..header }));
        let touched: &[usize] = if header.family.is_v4() { &[1, 10, 11] } else { &[1] };
        prop_assert!((0..packet.len()).all(|at| packet[at] == after[at] || touched.contains(&at)));
        let flow_label = |packet: &[u8]| packet[1] & 0x0f;
        prop_assert!(header.family.is_v4() || flow_label(&packet) == flow_label(&after));
    }

    #[test]
    fn arbitrary_packets_never_panic(mut bytes in prop_oneof![any_packet_bytes(), vec(any::<u8>(), 0..64)], first in prop_oneof![0x40u8..0x50, 0x60u8..0x70, any::<u8>()], changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let length = bytes.len();
        for (at, value) in changes.iter().filter(|_| length > 1) {
            bytes[at.index(length)] = *value;
        }
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!(header.transport <= header.total_len && header.total_len == bytes.len());
        }
        decrement_ttl(&mut bytes);
        set_ecn(&mut bytes, first);
    }

    #[test]
    fn etherparse_reads_the_same(v4: bool, udp: bool, ttl: u8, ports: (u16, u16), payload in vec(any::<u8>(), 0..200), from: [u8; 16], to: [u8; 16]) {
        let builder = if v4 {
            PacketBuilder::ipv4([from[0], from[1], from[2], from[3]], [to[0], to[1], to[2], to[3]], ttl)
        } else {
            PacketBuilder::ipv6(from, to, ttl)
        };
        let mut packet = Vec::new();
        if udp {
            builder.udp(ports.0, ports.1).write(&mut packet, &payload).unwrap();
        } else {
            builder.tcp(ports.0, ports.1, 1, 1).write(&mut packet, &payload).unwrap();
        }
        let header = Header::parse(&packet).unwrap();
        let other = IpSlice::from_slice(&packet).unwrap();
        prop_assert_eq!((header.source, header.destination, header.protocol), (other.source_addr(), other.destination_addr(), other.payload_ip_number().0));
        prop_assert_eq!(&packet[header.transport..], other.payload().payload);
        prop_assert_eq!((header.ttl, header.tos, header.fragment, header.total_len), (ttl, 0, Fragment::No, packet.len()));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let mut v4 = vec![0; 28];
    (v4[0], v4[1], v4[3]) = (0x45, 0xb8, 28);
    assert_eq!(Header::parse(&v4).unwrap().tos, 0xb8);
    let mut v6 = v6_packet(59, &[]);
    (v6[0], v6[1]) = (0x6b, 0x8f);
    // A header without payload is a valid packet.
    let header = Header::parse(&v6).unwrap();
    assert_eq!((header.tos, header.protocol), (0xb8, 59));
    for (packet, at, value, reason) in [
        (&v4, 3, 29, DropError::Malformed),
        (&v4, 3, 27, DropError::Malformed),
        (&v4, 0, 0x44, DropError::Malformed),
        (&v4, 0, 0x48, DropError::Malformed),
        (&v4, 0, 0x55, DropError::Malformed),
        (&v4, 0, 0x65, DropError::Short),
        (&v6, 5, 1, DropError::Malformed),
        (&v6, 4, 1, DropError::Malformed),
        (&v6, 0, 0x75, DropError::Malformed),
    ] {
        let mut packet = packet.clone();
        packet[at] = value;
        assert_eq!(Header::parse(&packet), Err(reason), "byte {at}: {value:#x}");
    }
    for short in [&v4[..19], &v4[..0], &v6[..39]] {
        assert_eq!(Header::parse(short), Err(DropError::Short), "{}", short.len());
    }
}

#[test]
fn extension_headers_are_followed_to_a_limit() {
    let parsed = |headers: &[(u8, u8)]| {
        let header = Header::parse(&v6_packet_with_extensions(headers, 17, &[0; 8])).unwrap();
        (header.protocol, header.transport, header.fragment)
    };
    let whole = |protocol, transport| (protocol, transport, Fragment::No);
    assert_eq!(parsed(&[]), whole(17, 40));
    for kind in [0, 43, 60, 135, 139, 140] {
        assert_eq!(parsed(&[(kind, 1)]), whole(17, 40 + 16), "{kind}");
    }
    for kind in [1, 6, 50, 59, 255] {
        assert_eq!(parsed(&[(kind, 1)]), whole(kind, 40), "{kind}");
    }
    assert_eq!(
        parsed(&[(0, 0), (60, 1), (43, 2), (51, 4), (44, 0)]),
        whole(17, 40 + 8 + 16 + 24 + 24 + 8)
    );
    assert_eq!(parsed(&[(60, 0); 8]), whole(17, 40 + 64));
    assert_eq!(parsed(&[(60, 0); 9]), whole(OPAQUE, 40 + 64));
    assert_eq!(parsed(&[(60, 63)]), whole(17, 40 + 512));
    assert_eq!(parsed(&[(60, 64)]), whole(OPAQUE, 40));
    assert_eq!(parsed(&[(0, 0), (60, 63)]), whole(OPAQUE, 48));
    // Headers that end beyond the packet, and a jumbogram: its payload length is zero.
    let mut jumbo = v6_packet(0, &[6, 0, 0xc2, 4, 0, 1, 0, 0]);
    (jumbo[4], jumbo[5]) = (0, 0);
    for packet in
        [v6_packet(60, &[17, 1, 0, 0, 0, 0, 0, 0]), v6_packet(60, &[17, 0, 0, 0, 0, 0, 0]), jumbo]
    {
        assert_eq!(Header::parse(&packet), Err(DropError::Malformed));
    }
}

#[test]
fn fragments() {
    let v4 = |flags: u16| {
        let mut packet = vec![0; 20];
        (packet[0], packet[3]) = (0x45, 20);
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        Header::parse(&packet).unwrap().fragment
    };
    // The don't-fragment bit and the reserved bit are ignored.
    for bits in [0, 0x4000, 0x8000] {
        assert_eq!(
            [v4(bits), v4(bits | 0x2000), v4(bits | 1), v4(bits | 0x2001)],
            [Fragment::No, Fragment::First, Fragment::Later, Fragment::Later]
        );
    }
    let v6 = |offset: u16, more: u16| {
        let [high, low] = (offset << 3 | 6 | more).to_be_bytes();
        let header =
            Header::parse(&v6_packet(44, &[60, 0, high, low, 0, 0, 0, 9, 17, 0, 1, 1, 1, 1, 1, 1]))
                .unwrap();
        (header.fragment, header.protocol, header.transport)
    };
    assert_eq!(v6(0, 0), (Fragment::No, 17, 56));
    assert_eq!(v6(0, 1), (Fragment::First, 17, 56));
    // In a later fragment, data follows the fragment header, so no further header is parsed.
    assert_eq!(v6(1, 0), (Fragment::Later, 60, 48));
    assert_eq!(v6(1, 1), (Fragment::Later, 60, 48));
}

#[test]
fn unchanged_fields_leave_the_packet_alone() {
    for sum in [0, 0xff] {
        let mut packet = vec![0x45; 20];
        packet[10..12].fill(sum);
        let before = packet.clone();
        set_ecn(&mut packet, before[1]);
        assert_eq!(packet, before);
    }
}

#[test]
fn an_expired_ttl_does_not_wrap() {
    for (mut packet, at) in [(vec![0x45; 20], 8), (v6_packet(59, &[]), 7)] {
        packet[at] = 1;
        decrement_ttl(&mut packet);
        assert_eq!(packet[at], 0);
        decrement_ttl(&mut packet);
        assert_eq!(packet[at], 0);
    }
}
