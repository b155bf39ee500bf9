//! Finds the flow of a packet.

pub(crate) mod messages;

use crate::packet::{Fragment, Header, TCP, UDP, place_of_addresses, read_word};
use std::net::SocketAddr;
use std::ops::Range;

const SCTP: u8 = 132;

/// A hash over addresses, protocol and ports, equal for all packets of a flow. For fragments it excludes the
/// ports, which only the first one contains.
#[inline]
#[must_use]
pub fn flow_hash(packet: &[u8], header: &Header) -> u32 {
    let ports = match (header.protocol, header.fragment) {
        (TCP | UDP | SCTP, Fragment::No) => header.transport..header.transport + 4,
        _ => 0..0,
    };
    let words = |range: Range<usize>| packet.get(range).unwrap_or_default().chunks_exact(4);
    let hash = words(place_of_addresses(header.family)).chain(words(ports)).fold(
        u32::from(header.protocol),
        |hash, word| {
            let word = word.first_chunk::<4>().map_or(0, |word| u32::from_be_bytes(*word));
            (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b1)
        },
    );
    // A multiplication propagates bits only upwards, so the upper bits are folded down. Connections between the same two addresses differ only in the
    // source port: the upper half of the last word, which Linux increments by two.
    let hash = (hash ^ hash >> 15).wrapping_mul(0x85eb_ca6b);
    hash ^ hash >> 13
}

/// In bytes: the longest packet for which a program most likely waits.
pub(crate) const MESSAGE: usize = 512;

/// Whether a program most likely waits for the packet. It is short, and no bare TCP acknowledgement, which
/// belongs to a stream.
#[inline]
pub(crate) fn is_short_and_not_ack(packet: &[u8], header: &Header) -> bool {
    let is_bare =
        || header.payload_offset(packet).is_some_and(|payload| payload >= header.total_len);
    header.total_len <= MESSAGE && !(header.protocol == TCP && is_bare())
}

/// Slots in a batch's flow table; two flows may share one.
pub(crate) const SLOTS: usize = 64;

#[inline]
pub(crate) fn flow_table_slot(hash: u32) -> usize {
    (hash >> 16) as usize % SLOTS
}

/// Uses other bits of the hash than [`flow_table_slot`], so that the flows of one queue use all slots.
#[inline]
pub(crate) fn flow_queue_number(hash: u32, queues: usize) -> usize {
    (hash >> 24) as usize % queues.max(1)
}

/// `None` for another protocol, or for a later fragment, which has no ports.
#[inline]
#[must_use]
pub fn udp_destination(packet: &[u8], header: &Header) -> Option<SocketAddr> {
    if header.protocol != UDP || header.fragment == Fragment::Later {
        return None;
    }
    read_word(packet, header.transport + 2).map(|port| SocketAddr::new(header.destination, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::tests::Recipe;

    #[test]
    fn message_is_short_and_carries_data() {
        let is = |tcp, ipv6, options, payload: usize| {
            let recipe = Recipe {
                ipv6,
                tcp,
                sequence: 1,
                flags: 0x10,
                options,
                id: 0,
                payload: vec![7; payload],
            };
            let packet = recipe.packet();
            is_short_and_not_ack(&packet, &Header::parse(&packet).unwrap())
        };
        for ipv6 in [false, true] {
            // A datagram without data is also a message.
            assert!(is(false, ipv6, 0, 0) && is(false, ipv6, 0, 400));
            assert!(is(true, ipv6, 0, 1) && is(true, ipv6, 10, 400));
            assert!(!is(true, ipv6, 0, 0) && !is(true, ipv6, 10, 0));
            assert!(!is(true, ipv6, 0, 1400) && !is(false, ipv6, 0, 1400));
        }
    }

    const QUEUES: usize = 8;

    /// Queue, slot and hash of a flow.
    type Place = (usize, usize, u32);

    /// The place of the flow between two pods, from their numbers and ports. All packets of a flow must have
    /// the same place.
    fn queue_slot_and_hash(
        protocol: u8,
        from: u32,
        source: u32,
        to: u32,
        destination: u32,
    ) -> Place {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&(0x0a05_0102 + from).to_be_bytes());
        packet[16..20].copy_from_slice(&(0x0a05_0202 + to).to_be_bytes());
        packet[20..24].copy_from_slice(&(source << 16 | destination).to_be_bytes());
        let header = Header::parse(&packet).unwrap();
        let place = |payload: u8| {
            let longer = [&packet[..], &[payload; 9]].concat();
            let hash = flow_hash(&longer, &header);
            (flow_queue_number(hash, QUEUES), flow_table_slot(hash), hash)
        };
        assert_eq!(place(1), place(2), "two packets of one flow");
        place(0)
    }

    /// Four sets of flows between pods, with increasing addresses and ports. One set contains many flows to
    /// one Service.
    fn sample_flows_by_kind() -> [(&'static str, Vec<Place>); 4] {
        let pairs = || (0..40).flat_map(|from| (0..40).map(move |to| (from, to)));
        let each = |from: u32, to| queue_slot_and_hash(TCP, from, 40_000 + from, to, 8080);
        let question = |from, n: u32| queue_slot_and_hash(UDP, from, 50_000 + 7 * n, 9, 53);
        let client = |source: u32| queue_slot_and_hash(TCP, 0, 32_768 + source, 0, 443);
        [
            (
                "pods to pods, one connection each",
                pairs().map(|(from, to)| each(from, to)).collect(),
            ),
            ("many connections of one pod to another", (0..1600).map(client).collect()),
            (
                "client ports in steps of two, as Linux assigns client ports",
                (0..1600).map(|n| client(2 * n)).collect(),
            ),
            ("questions to DNS", pairs().map(|(from, n)| question(from, n)).collect()),
        ]
    }

    /// Each byte has all values, so every byte distinguishes flows.
    #[test]
    fn every_byte_of_the_hash_has_all_values() {
        for (kind, flows) in sample_flows_by_kind() {
            for byte in 0..4 {
                let mut counts = [0; 256];
                for (.., hash) in &flows {
                    counts[(hash >> (8 * byte)) as usize % 256] += 1;
                }
                // A uniform hash of 1600 flows leaves on average less than one of 256 values unused. Less than one value occurs more than fifteen
                // times.
                let empty = counts.iter().filter(|count| **count == 0).count();
                assert!(
                    empty < 8 && *counts.iter().max().unwrap() < 24,
                    "{kind}: byte {byte} has {empty} values that none has: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn flows_spread_over_eight_queues_and_over_the_slots_of_each() {
        for (kind, flows) in sample_flows_by_kind() {
            for one in 0..QUEUES {
                let of_queue = flows.iter().filter(|(queue, ..)| *queue == one);
                let slots: Vec<usize> = of_queue.map(|(_, slot, _)| *slot).collect();
                let fair = flows.len() / QUEUES;
                assert!(
                    (fair * 2 / 3..=fair * 4 / 3).contains(&slots.len()),
                    "{kind}: queue {one} has {} of {} flows",
                    slots.len(),
                    flows.len()
                );
                // A uniform hash of 200 flows leaves on average three of 64 slots empty.
                let used: std::collections::HashSet<_> = slots.iter().collect();
                assert!(
                    used.len() >= SLOTS * 3 / 4,
                    "{kind}: queue {one} uses {} slots",
                    used.len()
                );
            }
        }
    }
}
