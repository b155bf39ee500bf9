//! A packet from a TUN device with its virtio header: the engine refuses it, or splits it into valid packets
//! without additional payload.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet_engine::packet::Header;
use packet_engine::packet::virtio::{LEN, VnetHeader};
use packet_engine::split::{HEADERS, plan_split_or_complete_checksum};

fuzz_target!(|data: &[u8]| {
    let Some((head, packet)) = data.split_at_checked(LEN) else {
        return;
    };
    let Some(vnet) = VnetHeader::parse(head) else {
        return;
    };
    assert_eq!(VnetHeader::parse(&vnet.bytes()), Some(vnet));
    let mut packet = packet.to_vec();
    let Ok(header) = Header::parse(&packet) else {
        return;
    };
    let Ok(segments) = plan_split_or_complete_checksum(&vnet, &header, &mut packet) else {
        return;
    };
    if segments.count == 1 {
        return;
    }
    let mut payload = 0;
    for index in 0..segments.count {
        let mut room = [0; HEADERS];
        let (made, range) = segments
            .write_headers(index, &packet, &mut room)
            .expect("a segment that was counted is there");
        assert!(made + range.len() <= segments.full_packet_len());
        assert_eq!(range.is_empty(), false);
        payload += range.len();
        let single = [&room[..made], &packet[range]].concat();
        let parsed = Header::parse(&single).expect("a segment is a packet");
        assert_eq!(
            (parsed.source, parsed.destination, parsed.protocol),
            (header.source, header.destination, header.protocol)
        );
    }
    assert!(payload <= packet.len());
});
