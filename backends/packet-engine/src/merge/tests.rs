//! The merger merges the right packets, and does not lose, invent or reorder packets of a flow.

use super::*;
use crate::split::tests::{Recipe, any_packet_recipe, split_into_packets};
use proptest::prelude::*;

fn concat_and_merge_packets(merger: &mut Merger, packets: &[Vec<u8>]) -> Vec<u8> {
    let buffer = packets.concat();
    let mut at = 0;
    for packet in packets {
        let range = at..at + packet.len();
        merger.merge_or_add_packet(&buffer, range.clone(), &Header::parse(&buffer[range]).unwrap());
        at += packet.len();
    }
    buffer
}

/// The number of packets in each group.
fn merged_group_sizes(packets: &[Vec<u8>]) -> Vec<usize> {
    let mut merger = Merger::new(true, true);
    concat_and_merge_packets(&mut merger, packets);
    merger.groups.iter().map(Group::count).collect()
}

/// A packet with one changed byte and a correct TCP checksum.
fn packet_with_changed_byte(recipe: &Recipe, at: usize, value: u8) -> Vec<u8> {
    let mut packet = recipe.packet();
    packet[at] = value;
    if at < 20 {
        packet[10..12].fill(0);
        let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(&packet[..20], 0));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet[36..38].fill(0);
    let pseudo = checksum::pseudo_header_sum(&packet[12..20], 6, packet.len() as u32 - 20);
    let sum = checksum::checksum_from_sum(checksum::ones_complement_sum(&packet[20..], pseudo));
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn a_stream_is_merged_until_it_ends() {
    let stream = |number: u32, length: usize| -> Vec<_> {
        let segment = |n| Recipe::ipv4_tcp_segment(n * length as u32, length).packet();
        (0..number).map(segment).collect()
    };
    assert_eq!(merged_group_sizes(&stream(5, 1000)), [5]);
    assert_eq!(merged_group_sizes(&stream(130, 10)), [64, 64, 2]);
    assert_eq!(
        merged_group_sizes(&stream(50, 1448)),
        [45, 5],
        "no packet is longer than 65535 bytes"
    );
    let segments = |parts: &[(u32, usize, u8)]| -> Vec<_> {
        let segment = |&(sequence, length, flags)| {
            Recipe { flags, ..Recipe::ipv4_tcp_segment(sequence, length) }.packet()
        };
        parts.iter().map(segment).collect()
    };
    for (what, parts, wanted) in [
        (
            "a shorter segment is the last",
            [(0, 900, 0x10), (900, 500, 0x10), (1400, 900, 0x10)],
            &[2, 1][..],
        ),
        ("PSH ends it", [(0, 900, 0x10), (900, 900, 0x18), (1800, 900, 0x10)], &[2, 1]),
        (
            "a longer one is another",
            [(0, 900, 0x10), (900, 1000, 0x10), (1900, 1000, 0x10)],
            &[1, 2],
        ),
        ("a gap", [(0, 900, 0x10), (1800, 900, 0x10), (2700, 900, 0x10)], &[1, 2]),
        ("a repetition", [(0, 900, 0x10), (0, 900, 0x10), (900, 900, 0x10)], &[1, 2]),
        ("no packet is overtaken", [(0, 900, 0x10), (900, 0, 0x10), (900, 900, 0x10)], &[1, 1, 1]),
    ] {
        assert_eq!(merged_group_sizes(&segments(&parts)), wanted, "{what}");
    }
    for flags in [0x11, 0x12, 0x14, 0x30, 0x90, 0x50, 0x00] {
        let parts = [(0, 900, flags), (900, 900, 0x10), (1800, 900, flags)];
        assert_eq!(merged_group_sizes(&segments(&parts)), [1, 1, 1], "flags {flags:#x}");
    }
}

#[test]
fn packets_that_differ_are_not_merged() {
    let (first, second) = (Recipe::ipv4_tcp_segment(0, 1000), Recipe::ipv4_tcp_segment(1000, 1000));
    let mut wrong = second.packet();
    wrong[60] ^= 1;
    let mut others = vec![("a wrong checksum is not corrected".to_owned(), wrong)];
    // TOS, fragment bits, TTL, an address, a port, the acknowledgement, the window, an option.
    for (at, value) in
        [(1, 3), (6, 0), (6, 0x20), (8, 62), (15, 9), (21, 9), (31, 9), (34, 9), (41, 9)]
    {
        others.push((format!("byte {at}"), packet_with_changed_byte(&second, at, value)));
    }
    for (what, other) in others {
        assert_eq!(merged_group_sizes(&[first.packet(), other]), [1, 1], "{what}");
    }
    let datagram = Recipe { tcp: false, ..first }.packet();
    assert_eq!(merged_group_sizes(&[datagram.clone(), datagram.clone()]), [2]);
    let mut unchecked = datagram;
    unchecked[26..28].fill(0);
    assert_eq!(merged_group_sizes(&[unchecked.clone(), unchecked]), [1, 1], "UDP without checksum");
}

#[test]
fn small_flows_are_written_before_a_stream() {
    let stream: Vec<_> =
        (0..60).map(|n| Recipe::ipv4_tcp_segment(n * 1400, 1400).packet()).collect();
    let answer = Recipe { tcp: false, ..Recipe::ipv4_tcp_segment(0, 40) }.packet();
    let turns = |packets: &[Vec<u8>]| {
        let mut merger = Merger::new(true, true);
        concat_and_merge_packets(&mut merger, packets);
        let starts: Vec<_> = merger.groups.iter().map(|group| group.first.start).collect();
        let place = |group: &Group| starts.binary_search(&group.first.start).unwrap();
        merger.groups_small_flows_first().map(place).collect::<Vec<_>>()
    };
    let mut packets = [&stream[..], std::slice::from_ref(&answer)].concat();
    assert_eq!(turns(&packets), [2, 0, 1]);
    assert_eq!(turns(&packets[40..]), [0, 1], "too small a batch");
    let mut fragment = answer;
    fragment[6] = 0x20;
    packets.push(fragment);
    assert_eq!(turns(&packets), [0, 1, 2, 3], "the flow of a fragment is unknown");
}

#[test]
fn disabled_merging_merges_nothing() {
    let stream =
        [Recipe::ipv4_tcp_segment(0, 100).packet(), Recipe::ipv4_tcp_segment(100, 100).packet()];
    let mut merger = Merger::new(false, true);
    concat_and_merge_packets(&mut merger, &stream);
    assert_eq!(merger.groups.len(), 2);
    merger.clear();
    assert!(merger.groups.is_empty());
}

/// As a kernel with checksum offload passes it on.
fn with_partial_checksum(packet: &[u8]) -> Vec<u8> {
    let header = Header::parse(packet).unwrap();
    let mut packet = packet.to_vec();
    let sum =
        checksum::fold_sum(partial_checksum::packet_pseudo_header_sum(&packet, &header).unwrap());
    write_word(
        &mut packet,
        header.transport + checksum_field_offset(header.protocol).unwrap(),
        sum,
    )
    .unwrap();
    packet
}

/// The single packets of a group.
fn packets_of_group(vnet: &VnetHeader, group: &Group, buffer: &[u8]) -> Vec<Vec<u8>> {
    let mut packet: Vec<u8> =
        group.ranges().flat_map(|range| buffer[range.clone()].iter().copied()).collect();
    split_into_packets(vnet, &mut packet).unwrap()
}

/// The flow of a packet, and the packet.
fn flow_and_packet(packet: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let header = Header::parse(packet).unwrap();
    let addresses = if header.family.is_v4() { 12..20 } else { 8..40 };
    let ports = &packet[header.transport..header.transport + 4];
    (
        packet[addresses].iter().chain(ports).copied().chain([header.protocol]).collect(),
        packet.to_vec(),
    )
}

proptest! {

    /// After the split, all checksums are complete.
    #[test]
    fn partial_checksums_make_no_difference(recipe in any_packet_recipe(20_000), size in 400usize..1500, left in any::<u64>()) {
        let recipe = Recipe { flags: recipe.flags & 0x18, ..recipe };
        let singles = recipe.segment_packets(size);
        prop_assume!(singles.len() <= 64);
        let came: Vec<Vec<u8>> = singles.iter().enumerate().map(|(index, single)| if left >> index & 1 == 1 { with_partial_checksum(single) } else { single.clone() }).collect();
        let mut merger = Merger::new(true, true);
        let mut buffer = concat_and_merge_packets(&mut merger, &came);
        prop_assert_eq!(merger.groups.len(), 1);
        let group = &merger.groups[0];
        prop_assert_eq!((group.count(), group.bytes_as_single_packets()), (singles.len(), singles.iter().map(Vec::len).sum()));
        let vnet = merger.groups[0].finish_headers(&mut buffer).unwrap();
        prop_assert_eq!(vnet, if singles.len() > 1 { recipe.gso_vnet_header(size) } else { vnet });
        let found = packets_of_group(&vnet, &merger.groups[0], &buffer);
        prop_assert_eq!(&found, &singles);
        // Without merging, each checksum is completed.
        let mut merger = Merger::new(false, false);
        let mut buffer = concat_and_merge_packets(&mut merger, &came);
        for (index, single) in singles.iter().enumerate() {
            let vnet = merger.groups[index].finish_headers(&mut buffer).unwrap();
            prop_assert_eq!(vnet.needs_csum, came[index] == with_partial_checksum(single));
            prop_assert_eq!(packets_of_group(&vnet, &merger.groups[index], &buffer), std::slice::from_ref(single));
        }
    }

    /// Its segments are counted, and no packet is added to it.
    #[test]
    fn a_super_packet_stays_whole(recipe in any_packet_recipe(20_000), size in 400usize..1500) {
        let packet = recipe.packet_with_partial_checksum();
        let after = Recipe { sequence: recipe.sequence.wrapping_add(recipe.payload.len() as u32), ..recipe.clone() }.packet();
        let mut buffer = [packet.clone(), after.clone()].concat();
        let mut merger = Merger::new(true, true);
        merger.add_gso_packet(&buffer, 0..packet.len(), &Header::parse(&packet).unwrap(), size);
        merger.merge_or_add_packet(&buffer, packet.len()..buffer.len(), &Header::parse(&after).unwrap());
        prop_assert_eq!(merger.groups.len(), 2);
        let singles = recipe.segment_packets(size);
        let group = &merger.groups[0];
        prop_assert_eq!((group.count(), group.bytes_as_single_packets()), (singles.len(), singles.iter().map(Vec::len).sum()));
        let vnet = merger.groups[0].finish_headers(&mut buffer).unwrap();
        prop_assert_eq!(packets_of_group(&vnet, &merger.groups[0], &buffer), singles);
    }

    /// After merging, scheduling and splitting.
    #[test]
    fn each_flow_keeps_its_packets_and_order(recipes in proptest::collection::vec((any_packet_recipe(4000), 0u8..3, any::<bool>()), 1..60)) {
        let mut next = [[0u32; 4]; 3];
        let packets: Vec<Vec<u8>> = recipes.into_iter().map(|(recipe, flow, follows)| {
            let kind = usize::from(recipe.ipv6) * 2 + usize::from(recipe.tcp);
            let place = &mut next[usize::from(flow)][kind];
            let sequence = if follows { *place } else { recipe.sequence };
            *place = sequence.wrapping_add(recipe.payload.len() as u32);
            // The IPv4 identifiers of a merged packet are consecutive.
            let recipe = Recipe { sequence, options: 0, flags: recipe.flags & 0x18, ..recipe };
            let mut packet = recipe.packet();
            let port = if recipe.ipv6 { 41 } else { 21 };
            // Another port, with a matching checksum.
            let at = port + if recipe.tcp { 15 } else { 5 };
            let sum = checksum::updated_checksum(u16::from_be_bytes([packet[at], packet[at + 1]]), u16::from_be_bytes([packet[port - 1], packet[port]]), u16::from_be_bytes([packet[port - 1], flow]));
            packet[port] = flow;
            packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            packet
        }).collect();
        let mut merger = Merger::new(true, true);
        let mut buffer = concat_and_merge_packets(&mut merger, &packets);
        let mut found: Vec<Vec<u8>> = Vec::new();
        for group in merger.groups_small_flows_first() {
            let vnet = group.finish_headers(&mut buffer).unwrap();
            found.extend(packets_of_group(&vnet, group, &buffer));
        }
        // Merging loses only the identifier.
        let bare = |packets: &[Vec<u8>]| {
            let mut all: Vec<(Vec<u8>, Vec<u8>)> = packets.iter().map(|packet| {
                let mut packet = packet.clone();
                if packet[0] >> 4 == 4 {
                    packet[4..6].fill(0);
                    packet[10..12].fill(0);
                }
                flow_and_packet(&packet)
            }).collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        };
        prop_assert_eq!(bare(&found), bare(&packets));
    }
}
