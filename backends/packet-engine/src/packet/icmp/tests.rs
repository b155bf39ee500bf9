use super::*;
use crate::packet::checksum::{fold_sum, ones_complement_sum, pseudo_header_sum};
use etherparse::{IpHeaders, IpSlice, PacketBuilder, PacketBuilderStep};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 5, 1, 0);
const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 5, 0, 1, 0, 0, 0, 0);
const ALL: [Icmp; 3] = [Icmp::NetUnreachable, Icmp::TimeExceeded, Icmp::TooBig(1472)];

fn own_tunnel_address(header: &Header) -> IpAddr {
    if header.family.is_v4() { OURS.into() } else { OURS_V6.into() }
}

fn udp_v4(payload: usize) -> Vec<u8> {
    build_udp_packet(PacketBuilder::ipv4([10, 5, 1, 2], [10, 5, 9, 9], 64), payload)
}

fn udp_v6(payload: usize) -> Vec<u8> {
    let [from, to] = ["fd00:5:0:1::2", "fd00:5:0:9::9"].map(|ip| ip.parse::<Ipv6Addr>().unwrap());
    build_udp_packet(PacketBuilder::ipv6(from.octets(), to.octets(), 64), payload)
}

fn build_udp_packet(builder: PacketBuilderStep<IpHeaders>, payload: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    let payload = vec![7; payload];
    builder.udp(1000, 2000).write(&mut packet, &payload).unwrap();
    packet
}

fn icmp_error_packet(icmp: Icmp, offender: &[u8]) -> Option<Vec<u8>> {
    let header = Header::parse(offender).unwrap();
    let mut out = vec![0xaa; 2000];
    let len = write_error_packet(icmp, offender, &header, own_tunnel_address(&header), &mut out)?;
    assert!(out[len..].iter().all(|byte| *byte == 0xaa));
    out.truncate(len);
    Some(out)
}

/// Parses the ICMP error with an independent parser and checks all checksums.
fn parse_and_check_error(answer: &[u8]) -> (IpAddr, u8, u8, u32, Vec<u8>) {
    let header = Header::parse(answer).unwrap();
    assert_eq!(
        (header.ttl, header.source, header.fragment),
        (64, own_tunnel_address(&header), Fragment::No)
    );
    let ip = IpSlice::from_slice(answer).unwrap();
    let message = ip.payload().payload;
    match header.family {
        Family::V4 => {
            assert_eq!(
                (
                    fold_sum(ones_complement_sum(&answer[..20], 0)),
                    fold_sum(ones_complement_sum(message, 0))
                ),
                (0xffff, 0xffff)
            );
            let slice = ip.ipv4().unwrap();
            assert_eq!(
                slice.header().header_checksum(),
                slice.header().to_header().calc_header_checksum()
            );
        }
        Family::V6 => assert_eq!(
            fold_sum(ones_complement_sum(
                message,
                pseudo_header_sum(&answer[8..40], 58, message.len() as u32)
            )),
            0xffff
        ),
    }
    (
        header.destination,
        message[0],
        message[1],
        u32::from_be_bytes(message[4..8].try_into().unwrap()),
        message[8..].to_vec(),
    )
}

#[test]
fn errors_go_to_the_sender() {
    let rows = [
        (Icmp::NetUnreachable, (3, 0, 0), (1, 0, 0)),
        (Icmp::TimeExceeded, (11, 0, 0), (3, 0, 0)),
        (Icmp::TooBig(1472), (3, 4, 1472), (2, 0, 1472)),
    ];
    for (icmp, v4, v6) in rows {
        for (offender, (kind, code, word)) in [(udp_v4(30), v4), (udp_v6(30), v6)] {
            let sender = Header::parse(&offender).unwrap().source;
            assert_eq!(
                parse_and_check_error(&icmp_error_packet(icmp, &offender).unwrap()),
                (sender, kind, code, word, offender)
            );
        }
    }
}

#[test]
fn the_quote_fills_the_message() {
    for payload in [0, 1, 8, 500, 519, 520, 521, 549, 1400, 60_000] {
        for (offender, headers, most, longest) in
            [(udp_v4(payload), 28, 548, V4_MAX), (udp_v6(payload), 48, 1232, V6_MAX)]
        {
            let reply = icmp_error_packet(Icmp::TimeExceeded, &offender).unwrap();
            assert_eq!(reply[headers..], offender[..offender.len().min(most)]);
            assert!(reply.len() <= longest);
        }
    }
}

#[test]
fn too_little_room_gives_no_reply() {
    // The minimum quote is the header and 8 bytes, or all of a shorter packet.
    for (offender, headers, least) in
        [(udp_v4(100), 28, 28), (udp_v6(100), 48, 48), (udp_v4(0), 28, 28), (udp_v6(0), 48, 48)]
    {
        let header = Header::parse(&offender).unwrap();
        for room in 0..300 {
            let len = write_error_packet(
                Icmp::TimeExceeded,
                &offender,
                &header,
                own_tunnel_address(&header),
                &mut vec![0; room],
            );
            assert_eq!(
                len,
                (room >= headers + least).then(|| room.min(headers + offender.len())),
                "{room}"
            );
        }
    }
}

#[test]
fn icmp_errors_get_no_icmp_error() {
    let with = |packet: Vec<u8>, protocol_at: usize, protocol: u8, kind: u8| {
        let mut packet = packet;
        let body = packet.len() - 20;
        (packet[protocol_at], packet[body]) = (protocol, kind);
        icmp_error_packet(Icmp::TimeExceeded, &packet).is_some()
    };
    let answered: Vec<u8> = (0..=255).filter(|kind| with(udp_v4(12), 9, 1, *kind)).collect();
    assert_eq!(answered, [0, 8, 9, 10, 13, 14, 15, 16, 17, 18, 42, 43]);
    let answered: Vec<u8> = (0..=255).filter(|kind| with(udp_v6(12), 6, 58, *kind)).collect();
    assert_eq!(answered, (128..=255).filter(|kind| *kind != 137).collect::<Vec<u8>>());
    // The packet ends before the type.
    for (mut packet, at, protocol, len_at) in [(udp_v4(0), 9, 1, 3), (udp_v6(0), 6, 58, 5)] {
        packet.truncate(packet.len() - 8);
        packet[at] = protocol;
        packet[len_at] -= 8;
        assert_eq!(icmp_error_packet(Icmp::TimeExceeded, &packet), None);
    }
}

#[test]
fn an_error_behind_extension_headers_is_one() {
    let mut packet = udp_v6(12);
    packet[6] = 60;
    packet[40..48].copy_from_slice(&[58, 0, 1, 4, 0, 0, 0, 0]);
    let mut with = |next, kind| {
        (packet[40], packet[48]) = (next, kind);
        icmp_error_packet(Icmp::TimeExceeded, &packet).is_some()
    };
    assert_eq!([with(58, 128), with(58, 1), with(58, 3), with(17, 1)], [true, false, false, true]);
    // A chain that is too long to follow may end in an error.
    let mut long = udp_v6(100);
    long[6] = 60;
    (0..10).for_each(|n| long[40 + n * 8..48 + n * 8].copy_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]));
    assert_eq!(icmp_error_packet(Icmp::TimeExceeded, &long), None);
}

#[test]
fn later_fragments_get_no_icmp_error() {
    let v4 = |flags: u16| {
        let mut packet = udp_v4(16);
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        icmp_error_packet(Icmp::NetUnreachable, &packet).is_some()
    };
    assert_eq!(
        [v4(0), v4(0x4000), v4(0x2000), v4(1), v4(0x2001), v4(0x1fff)],
        [true, true, true, false, false, false]
    );
    let v6 = |offset_and_more: u16| {
        let mut packet = udp_v6(16);
        packet[6] = 44;
        let [high, low] = offset_and_more.to_be_bytes();
        packet[40..48].copy_from_slice(&[17, 0, high, low, 0, 0, 0, 1]);
        icmp_error_packet(Icmp::NetUnreachable, &packet).is_some()
    };
    assert_eq!([v6(0), v6(1), v6(8), v6(9)], [true, true, false, false]);
}

#[test]
fn icmp_errors_are_sent_only_between_hosts() {
    let not_hosts = [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
    ];
    for ip in not_hosts {
        for at in [12, 16] {
            let mut packet = udp_v4(8);
            packet[at..at + 4].copy_from_slice(&ip.parse::<Ipv4Addr>().unwrap().octets());
            assert_eq!(icmp_error_packet(Icmp::NetUnreachable, &packet), None, "{ip} at {at}");
        }
    }
    for ip in ["::", "::1", "fe80::1", "ff02::1", "::ffff:10.5.1.2"] {
        for at in [8, 24] {
            let mut packet = udp_v6(8);
            packet[at..at + 16].copy_from_slice(&ip.parse::<Ipv6Addr>().unwrap().octets());
            assert_eq!(icmp_error_packet(Icmp::TooBig(1400), &packet), None, "{ip} at {at}");
        }
    }
    // No error may be sent with a source of the other family.
    let packet = udp_v4(8);
    let header = Header::parse(&packet).unwrap();
    assert_eq!(
        write_error_packet(Icmp::TimeExceeded, &packet, &header, OURS_V6.into(), &mut [0; 600]),
        None
    );
}

#[test]
fn options_are_quoted_whole() {
    let mut packet = udp_v4(100);
    packet[0] = 0x4f;
    let header = Header::parse(&packet).unwrap();
    assert_eq!(header.transport, 60);
    let reply = |room: usize| {
        write_error_packet(Icmp::TimeExceeded, &packet, &header, OURS.into(), &mut vec![0; room])
    };
    assert_eq!((reply(28 + 67), reply(28 + 68)), (None, Some(28 + 68)));
}

proptest! {

    #[test]
    fn every_reply_is_a_valid_packet(
        mut offender in (any::<bool>(), 0usize..1500).prop_map(|(v4, len)| if v4 { udp_v4(len) } else { udp_v6(len) }),
        changes in vec((0usize..60, any::<u8>()), 0..6),
        icmp in proptest::sample::select(ALL.to_vec()),
        room in prop_oneof![Just(1500usize), 0usize..1500],
    ) {
        for (at, value) in changes {
            if let Some(place) = offender.get_mut(at) {
                *place = value;
            }
        }
        let Ok(header) = Header::parse(&offender) else {
            return Ok(());
        };
        let mut out = vec![0; room];
        if let Some(len) = write_error_packet(icmp, &offender, &header, own_tunnel_address(&header), &mut out) {
            let largest = if header.family.is_v4() { V4_MAX } else { V6_MAX };
            prop_assert!(len <= room && len <= largest);
            let (to, .., quote) = parse_and_check_error(&out[..len]);
            prop_assert_eq!(to, header.source);
            prop_assert!(offender.starts_with(&quote) && quote.len() >= offender.len().min(header.family.pick(header.transport, 40) + 8));
            // The error itself must not be replied to.
            let again = Header::parse(&out[..len]).unwrap();
            prop_assert_eq!(write_error_packet(icmp, &out[..len], &again, own_tunnel_address(&again), &mut [0; 1500]), None);
        }
    }
}
