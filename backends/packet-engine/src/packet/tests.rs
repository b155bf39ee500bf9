use super::*;
use crate::checksum::{checksum, fold, sum};
use etherparse::{IpSlice, PacketBuilder};
use proptest::collection::vec;
use proptest::prelude::*;

/// Reference parser of extension headers. Returns the protocol, the offset and the fragment kind.
fn slow_chain(
    packet: &[u8],
    protocol: u8,
    at: usize,
    followed: usize,
    fragment: Fragment,
) -> Option<(u8, usize, Fragment)> {
    if ![0, 43, 44, 51, 60, 135, 139, 140].contains(&protocol) || fragment == Fragment::Later {
        return Some((protocol, at, fragment));
    }
    let rest = &packet[at..];
    if rest.len() < 8 {
        return None;
    }
    let len = if protocol == 44 {
        8
    } else if protocol == 51 {
        8 + 4 * usize::from(rest[1])
    } else {
        8 + 8 * usize::from(rest[1])
    };
    if followed == 8 || at - 40 + len > 512 {
        return Some((255, at, fragment));
    }
    if len > rest.len() {
        return None;
    }
    let fragment = if protocol == 44 {
        let (offset, more) = (
            (u16::from(rest[2]) << 8 | u16::from(rest[3])) >> 3,
            rest[3] & 1 == 1,
        );
        if offset > 0 {
            Fragment::Later
        } else if more {
            Fragment::First
        } else {
            fragment
        }
    } else {
        fragment
    };
    slow_chain(packet, rest[0], at + len, followed + 1, fragment)
}

/// Reference parser of the whole header.
fn slow(packet: &[u8]) -> Result<Header, Reason> {
    if packet.len() < 20 {
        return Err(Reason::Short);
    }
    let word = |at: usize| usize::from(packet[at]) * 256 + usize::from(packet[at + 1]);
    if packet[0] >> 4 == 4 {
        let header_len = 4 * usize::from(packet[0] & 0x0f);
        if header_len < 20 || header_len > packet.len() || word(2) != packet.len() {
            return Err(Reason::Malformed);
        }
        let (offset, more) = ((word(6) & 0x1fff) * 8, packet[6] & 0x20 != 0);
        let fragment = match (offset, more) {
            (0, false) => Fragment::No,
            (0, true) => Fragment::First,
            _ => Fragment::Later,
        };
        let ip = |at: usize| {
            IpAddr::V4(Ipv4Addr::from(
                <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap(),
            ))
        };
        return Ok(Header {
            version: Version::V4,
            header_len,
            transport: header_len,
            protocol: packet[9],
            total_len: word(2),
            ttl: packet[8],
            tos: packet[1],
            source: ip(12),
            destination: ip(16),
            fragment,
        });
    }
    if packet[0] >> 4 != 6 {
        return Err(Reason::Malformed);
    }
    if packet.len() < 40 {
        return Err(Reason::Short);
    }
    if word(4) + 40 != packet.len() {
        return Err(Reason::Malformed);
    }
    let ip = |at: usize| {
        IpAddr::V6(Ipv6Addr::from(
            <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap(),
        ))
    };
    let (protocol, transport, fragment) =
        slow_chain(packet, packet[6], 40, 0, Fragment::No).ok_or(Reason::Malformed)?;
    Ok(Header {
        version: Version::V6,
        header_len: 40,
        transport,
        protocol,
        total_len: packet.len(),
        ttl: packet[7],
        tos: (word(0) >> 4) as u8,
        source: ip(8),
        destination: ip(24),
        fragment,
    })
}

fn v6(next: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![
        0x60,
        0,
        0,
        0,
        (body.len() >> 8) as u8,
        body.len() as u8,
        next,
        64,
    ];
    packet.extend([0xfd; 16]);
    packet.extend([0xfc; 16]);
    packet.extend(body);
    packet
}

/// Returns a chain of extension headers with the given kinds and length bytes, followed by the payload.
fn chain(headers: &[(u8, u8)], last: u8, payload: &[u8]) -> Vec<u8> {
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
    v6(headers.first().map_or(last, |(kind, _)| *kind), &body)
}

fn packets() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => proptest::sample::select(vec![0u8, 43, 44, 51, 60, 135, 139, 140]), 1 => any::<u8>()];
    let headers = vec((kind, prop_oneof![6 => 0u8..3, 1 => any::<u8>()]), 0..11);
    let v6 = (headers, any::<u8>(), vec(any::<u8>(), 0..40))
        .prop_map(|(headers, last, payload)| chain(&headers, last, &payload));
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
    fn equals_the_simple_parser(mut packet in packets(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in prop_oneof![9 => Just(0usize), 1 => 1usize..60]) {
        for (at, value) in changes {
            if !packet.is_empty() {
                let at = at.index(packet.len());
                packet[at] = value;
            }
        }
        packet.truncate(packet.len().saturating_sub(cut));
        let header = Header::parse(&packet);
        prop_assert_eq!(header, slow(&packet));
        if let Ok(header) = header {
            prop_assert!(header.header_len <= header.transport && header.transport <= header.total_len && header.total_len == packet.len());
        }
    }

    #[test]
    fn only_the_ttl_is_decremented(packet in packets()) {
        let mut after = packet.clone();
        decrement_ttl(&mut after);
        let Ok(header) = Header::parse(&packet) else {
            return Ok(());
        };
        prop_assert_eq!(Header::parse(&after), Ok(Header { ttl: header.ttl.saturating_sub(1), ..header }));
        let touched: &[usize] = if header.version == Version::V4 { &[8, 10, 11] } else { &[7] };
        prop_assert!((0..packet.len()).all(|at| packet[at] == after[at] || touched.contains(&at)));
    }

    #[test]
    fn a_correct_checksum_stays_correct(mut packet in vec(any::<u8>(), 20..60), ecn: u8) {
        packet[0] = 0x45;
        packet[10..12].fill(0);
        let right = checksum(sum(&packet[..20], 0)).to_be_bytes();
        packet[10..12].copy_from_slice(&right);
        set_ecn(&mut packet, ecn);
        decrement_ttl(&mut packet);
        // The updated checksum must equal a newly calculated one.
        let patched = [packet[10], packet[11]];
        packet[10..12].fill(0);
        prop_assert_eq!(patched, checksum(sum(&packet[..20], 0)).to_be_bytes());
    }

    #[test]
    fn a_wrong_checksum_stays_wrong(mut packet in vec(any::<u8>(), 20..60), ecn: u8) {
        packet[0] = 0x45;
        let before = fold(sum(&packet[..20], 0)) % 0xffff;
        set_ecn(&mut packet, ecn);
        decrement_ttl(&mut packet);
        prop_assert_eq!(fold(sum(&packet[..20], 0)) % 0xffff, before);
    }

    #[test]
    fn only_ecn_is_set(packet in packets(), ecn: u8) {
        let mut after = packet.clone();
        set_ecn(&mut after, ecn);
        let Ok(header) = Header::parse(&packet) else {
            return Ok(());
        };
        prop_assert_eq!(Header::parse(&after), Ok(Header { tos: header.tos & 0xfc | ecn & 3, ..header }));
        let touched: &[usize] = if header.version == Version::V4 { &[1, 10, 11] } else { &[1] };
        prop_assert!((0..packet.len()).all(|at| packet[at] == after[at] || touched.contains(&at)));
        let flow_label = |packet: &[u8]| packet[1] & 0x0f;
        prop_assert!(header.version == Version::V4 || flow_label(&packet) == flow_label(&after));
    }

    #[test]
    fn arbitrary_packets_never_panic(mut bytes in vec(any::<u8>(), 0..64), first in prop_oneof![0x40u8..0x50, 0x60u8..0x70, any::<u8>()]) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let _ = Header::parse(&bytes);
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
        prop_assert_eq!((header.ttl, header.fragment, header.total_len), (ttl, Fragment::No, packet.len()));
    }
}

#[test]
fn every_length_and_version_of_junk() {
    for first in 0..=255u8 {
        for len in 0..=64usize {
            for claimed in [
                0,
                19,
                20,
                len,
                len + 1,
                len.saturating_sub(1),
                len.saturating_sub(40),
                len.saturating_sub(39),
            ] {
                let mut packet = vec![0; len];
                [
                    (0, first),
                    (2, (claimed >> 8) as u8),
                    (3, claimed as u8),
                    (5, claimed as u8),
                ]
                .into_iter()
                .for_each(|(at, byte)| {
                    if let Some(place) = packet.get_mut(at) {
                        *place = byte;
                    }
                });
                assert_eq!(
                    Header::parse(&packet),
                    slow(&packet),
                    "first {first:#x} len {len} claimed {claimed}"
                );
            }
        }
    }
}

#[test]
fn wrong_lengths() {
    let mut packet = vec![0; 28];
    (packet[0], packet[3]) = (0x45, 28);
    assert!(Header::parse(&packet).is_ok());
    for (change, at, value) in [
        ("longer", 3, 29),
        ("shorter", 3, 27),
        ("header 16", 0, 0x44),
        ("header 32", 0, 0x48),
        ("version", 0, 0x65),
    ] {
        let mut packet = packet.clone();
        packet[at] = value;
        let want = if change == "version" {
            Reason::Short
        } else {
            Reason::Malformed
        };
        assert_eq!(Header::parse(&packet), Err(want), "{change}");
    }
    // A jumbogram has no payload length, but a hop-by-hop header with the jumbo option.
    let mut jumbo = v6(0, &[6, 0, 0xc2, 4, 0, 1, 0, 0]);
    (jumbo[4], jumbo[5]) = (0, 0);
    assert_eq!(Header::parse(&jumbo), Err(Reason::Malformed));
    // A header without payload is a valid packet.
    assert_eq!(Header::parse(&v6(59, &[])).unwrap().protocol, 59);
}

#[test]
fn extension_headers_are_followed_to_a_limit() {
    let parsed = |headers: &[(u8, u8)]| {
        let header = Header::parse(&chain(headers, 17, &[0; 8])).unwrap();
        (header.protocol, header.transport, header.fragment)
    };
    assert_eq!(parsed(&[]), (17, 40, Fragment::No));
    assert_eq!(
        parsed(&[(0, 0), (60, 1), (43, 2), (51, 4)]),
        (17, 40 + 8 + 16 + 24 + 24, Fragment::No)
    );
    assert_eq!(parsed(&[(60, 0); 8]), (17, 40 + 64, Fragment::No));
    assert_eq!(parsed(&[(60, 0); 9]), (OPAQUE, 40 + 64, Fragment::No));
    assert_eq!(parsed(&[(60, 63)]), (17, 40 + 512, Fragment::No));
    assert_eq!(parsed(&[(60, 64)]), (OPAQUE, 40, Fragment::No));
    assert_eq!(parsed(&[(0, 0), (60, 63)]), (OPAQUE, 48, Fragment::No));
    // An extension header that ends beyond the packet, at a position that is followed.
    assert_eq!(
        Header::parse(&v6(60, &[17, 1, 0, 0, 0, 0, 0, 0])),
        Err(Reason::Malformed)
    );
    assert_eq!(
        Header::parse(&v6(60, &[17, 0, 0, 0, 0, 0, 0])),
        Err(Reason::Malformed)
    );
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
            [
                Fragment::No,
                Fragment::First,
                Fragment::Later,
                Fragment::Later
            ]
        );
    }
    let v6 = |offset: u16, more: u16| {
        let [high, low] = (offset << 3 | 6 | more).to_be_bytes();
        let header = Header::parse(&v6(
            44,
            &[60, 0, high, low, 0, 0, 0, 9, 17, 0, 1, 1, 1, 1, 1, 1],
        ))
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
    for (mut packet, at) in [(vec![0x45; 20], 8), (v6(59, &[]), 7)] {
        packet[at] = 1;
        decrement_ttl(&mut packet);
        assert_eq!(packet[at], 0);
        decrement_ttl(&mut packet);
        assert_eq!(packet[at], 0);
    }
}
