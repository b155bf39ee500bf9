//! Datagrams on the VXLAN port: an accepted inner packet is valid and lies inside its datagram. Merging them
//! into GSO packets loses none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet_engine::merge::Merger;
use packet_engine::packet::Header;
use packet_engine::packet::framing::{Framing, VXLAN};
use packet_engine::packet::partial_checksum::tcp_gso_segment_size;

const MTU: u16 = 200;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

// Several datagrams of one receive buffer. The first byte determines the size of each but the last.
fuzz_target!(|data: &[u8]| {
    let Some((size, rest)) = data.split_first() else {
        return;
    };
    let framing = Framing::Vxlan { vni: 1, mac: MAC };
    let mut buffer = rest.to_vec();
    let size = usize::from(*size) * 8 + 1;
    let mut merger = Merger::new(true, true);
    let (mut start, mut offered, mut payload) = (0, 0, 0);
    while start < buffer.len() {
        let end = buffer.len().min(start + size);
        if let Ok(inner) = framing.strip(&buffer[start..end]) {
            assert!(inner.start == VXLAN && inner.end <= end - start && inner.start <= inner.end);
            let at = start + inner.start..start + inner.end;
            if let Ok(header) = Header::parse(&buffer[at.clone()]) {
                assert_eq!(header.total_len, at.len());
                // A GSO packet counts as its segments, each with its headers.
                if let Some(size) = tcp_gso_segment_size(&buffer[at.clone()], &header, MTU) {
                    assert!(size < usize::from(MTU) && at.len() > usize::from(MTU));
                    let own = usize::from(MTU) - size;
                    offered += (at.len() - own).div_ceil(size);
                    payload += at.len();
                    merger.add_gso_packet(&buffer, at, &header, size);
                    start = end;
                    continue;
                }
                offered += 1;
                payload += at.len();
                merger.merge_or_add_packet(&buffer, at, &header);
            }
        }
        start = end;
    }
    let mut packets = 0;
    let mut written = 0;
    for group in merger.groups_small_flows_first() {
        let vnet = group.finish_headers(&mut buffer).unwrap();
        packets += group.count();
        let total =
            group.first.len() + group.rest.iter().map(ExactSizeIterator::len).sum::<usize>();
        written += total;
        assert!(total <= 65_535);
        assert_eq!(vnet.gso_size > 0, group.count() > 1);
    }
    assert_eq!(packets, offered, "no packet is lost");
    assert!(written <= payload);
});
