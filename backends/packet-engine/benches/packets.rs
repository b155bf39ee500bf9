//! The work for each packet in userspace, without system calls: checksum, lookup of the peer, split and merge
//! of TCP GSO packets.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use ipnet::{IpNet, Ipv4Net};
use packet_engine::merge::Merger;
use packet_engine::packet::Header;
use packet_engine::packet::checksum;
use packet_engine::packet::virtio::VnetHeader;
use packet_engine::split::{HEADERS, plan_split_or_complete_checksum};
use packet_engine::table::{Checks, Networks, Peer, Table, TableSettings};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

/// IPv4 and TCP headers without options, in bytes.
const HEADER: usize = 40;
/// Payload of a segment in bytes, at the MTU of a vxlan network on Ethernet.
const SEGMENT: u16 = 1410;
const SEGMENTS: usize = 45;

fn main() {
    divan::main();
}

#[divan::bench(args = [40, 1450, 65535])]
fn checksum_of_bytes(bencher: Bencher, length: usize) {
    let data: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
    bencher
        .counter(BytesCount::new(length))
        .bench_local(|| checksum::ones_complement_sum(black_box(&data), 0));
}

fn table(peers: u16) -> Table {
    let networks =
        Networks { v4: Some(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8)), v6: None };
    let settings = TableSettings {
        networks,
        own: Networks { v4: Some(Ipv4Net::new_assert(Ipv4Addr::new(10, 255, 0, 0), 24)), v6: None },
        checks: Checks::Cluster,
        mtu: 1450,
        routed: true,
        encap_port: 8285,
        address: None,
    };
    let peers = (0..peers).map(|peer| {
        let [high, low] = peer.to_be_bytes();
        let subnet = Ipv4Net::new_assert(Ipv4Addr::new(10, high, low, 0), 24);
        let peer = Peer {
            address: SocketAddr::from((Ipv4Addr::new(192, 168, high, low), 8285)),
            mac: [0; 6],
            carries_v6: false,
            outer_ecn: false,
        };
        (IpNet::V4(subnet), peer)
    });
    Table::build(settings, peers)
}

#[divan::bench(args = [10, 1000, 10_000])]
fn look_up_a_peer(bencher: Bencher, peers: u16) {
    let table = table(peers);
    let mut number = 0_u16;
    bencher.bench_local(|| {
        number = number.wrapping_mul(31).wrapping_add(7) % peers;
        let [high, low] = number.to_be_bytes();
        table.lookup(black_box(IpAddr::V4(Ipv4Addr::new(10, high, low, 9))))
    });
}

#[divan::bench(args = [1000, 10_000])]
fn build_the_table(bencher: Bencher, peers: u16) {
    bencher.bench_local(|| table(black_box(peers)));
}

/// A TCP GSO packet as the TUN device delivers it, and its virtio header.
fn super_packet() -> (VnetHeader, Vec<u8>) {
    let length = HEADER + usize::from(SEGMENT) * SEGMENTS;
    let mut packet = vec![0x5a; length];
    let [high, low] = (length as u16).to_be_bytes();
    let ip = [0x45, 0, high, low, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 1, 1, 2, 10, 1, 2, 2];
    let tcp = [0x9c, 0x40, 0x1f, 0x90, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    packet.splice(..HEADER, ip.into_iter().chain(tcp));
    // VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4
    let mut header = vec![1, 1];
    for field in [HEADER as u16, SEGMENT, 20, 16] {
        header.extend(field.to_ne_bytes());
    }
    (VnetHeader::parse(&header).unwrap_or_default(), packet)
}

/// A buffer of segments in the order in which they arrive, and the range of each.
fn segments() -> (Vec<u8>, Vec<Range<usize>>) {
    let (vnet, mut packet) = super_packet();
    let (mut buffer, mut places) = (Vec::new(), Vec::new());
    let Ok(header) = Header::parse(&packet) else {
        return (buffer, places);
    };
    if let Ok(all) = plan_split_or_complete_checksum(&vnet, &header, &mut packet) {
        for index in 0..all.count {
            let mut head = [0; HEADERS];
            let Some((length, payload)) = all.write_headers(index, &packet, &mut head) else {
                continue;
            };
            let start = buffer.len();
            buffer.extend(head.iter().take(length));
            buffer.extend(packet.iter().skip(payload.start).take(payload.len()));
            places.push(start..buffer.len());
        }
    }
    assert_eq!(places.len(), SEGMENTS);
    (buffer, places)
}

#[divan::bench]
fn split_a_super_packet(bencher: Bencher) {
    let (vnet, mut packet) = super_packet();
    let mut out = [0; HEADERS];
    bencher.counter(BytesCount::new(packet.len())).bench_local(|| {
        let Ok(header) = Header::parse(&packet) else {
            return 0;
        };
        let Ok(all) = plan_split_or_complete_checksum(&vnet, &header, &mut packet) else {
            return 0;
        };
        (0..all.count)
            .filter_map(|index| all.write_headers(index, &packet, black_box(&mut out)))
            .map(|(length, _)| length)
            .sum::<usize>()
    });
}

#[divan::bench]
fn merge_segments(bencher: Bencher) {
    let (mut buffer, places) = segments();
    let mut merger = Merger::new(true, true);
    bencher.counter(BytesCount::new(buffer.len())).bench_local(|| {
        merger.clear();
        for at in &places {
            let Some(Ok(header)) = buffer.get(at.clone()).map(Header::parse) else {
                continue;
            };
            merger.merge_or_add_packet(&buffer, at.clone(), &header);
        }
        // `finish_headers` changes the first packet's headers, which have to be restored for the next round.
        let before = buffer.get(..HEADER).map(<[u8]>::to_vec);
        let mut groups = merger.groups_small_flows_first();
        let vnet = groups.next().map(|group| group.finish_headers(&mut buffer));
        let groups = groups.count();
        if let (Some(before), Some(head)) = (before, buffer.get_mut(..HEADER)) {
            head.copy_from_slice(&before);
        }
        (groups, vnet)
    });
}
