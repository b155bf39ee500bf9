//! A packet that the packet engine cannot forward: it sends no ICMP error, or a valid and short one that
//! triggers no further error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet_engine::packet::checksum::{fold_sum, ones_complement_sum, pseudo_header_sum};
use packet_engine::packet::icmp::{V4_MAX, V6_MAX, write_error_packet};
use packet_engine::packet::martian::is_martian;
use packet_engine::packet::{Fragment, Header};
use packet_engine::verdict::Icmp;
use std::net::IpAddr;

// The first byte selects the error and the room for the reply. The rest is the packet that caused the error.
fuzz_target!(|data: &[u8]| {
    let Some((choice, offender)) = data.split_first() else {
        return;
    };
    let Ok(header) = Header::parse(offender) else {
        return;
    };
    let icmp = [Icmp::NetUnreachable, Icmp::TimeExceeded, Icmp::TooBig(1472), Icmp::TooBig(0xffff)]
        [usize::from(choice & 3)];
    let v4 = header.family.is_v4();
    let source: IpAddr =
        if v4 { [10, 5, 1, 0].into() } else { [0xfd00, 5, 0, 1, 0, 0, 0, 0].into() };
    let room = if choice & 4 == 0 { 2000 } else { usize::from(choice >> 3) * 20 };
    let mut out = vec![0; room];
    let Some(len) = write_error_packet(icmp, offender, &header, source, &mut out) else {
        return;
    };
    assert!(len <= if v4 { V4_MAX } else { V6_MAX });
    let answer = &out[..len];
    let parsed = Header::parse(answer).unwrap();
    assert_eq!(
        (parsed.source, parsed.destination, parsed.ttl, parsed.fragment),
        (source, header.source, 64, Fragment::No)
    );
    assert!(
        header.fragment != Fragment::Later
            && !is_martian(&header.source)
            && !is_martian(&header.destination)
    );
    let message = &answer[parsed.transport..];
    if v4 {
        assert_eq!(
            (
                parsed.protocol,
                fold_sum(ones_complement_sum(&answer[..20], 0)),
                fold_sum(ones_complement_sum(message, 0))
            ),
            (1, 0xffff, 0xffff)
        );
    } else {
        assert_eq!(
            (
                parsed.protocol,
                fold_sum(ones_complement_sum(
                    message,
                    pseudo_header_sum(&answer[8..40], 58, message.len() as u32)
                ))
            ),
            (58, 0xffff)
        );
    }
    assert!(
        offender.starts_with(&message[8..])
            && message.len() >= 8 + offender.len().min(header.family.pick(header.transport, 40) + 8)
    );
    assert_eq!(write_error_packet(icmp, answer, &parsed, source, &mut [0; 2000]), None);
});
