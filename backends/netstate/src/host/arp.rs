//! Probes that detect which hosts of a link use an address: ARP probes (RFC 5227, section 2.1.1), and Neighbor Solicitations of duplicate
//! address detection (RFC 4862, section 5.4). Both have no sender address, so other hosts do not change their neighbour tables.

use crate::host::packet_socket::PacketSocket;
use crate::names::Mac;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// EtherTypes of ARP and IPv6.
const ETHERTYPE: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// ARP fields for Ethernet and IPv4: hardware type, protocol type, and the lengths in bytes of a MAC and an IPv4 address.
const KINDS: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];
/// Next header and hop limit of a Neighbor Solicitation, and the types of a solicitation and an advertisement (RFC 4861, section 4.3).
const ICMPV6: [u8; 2] = [58, 255];
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// A link can lose single frames.
const REPEAT: Duration = Duration::from_millis(500);

/// The addresses at which another host replies within the timeout, with its MAC. Replies from MACs
/// in `own` do not count. `enough` addresses with a reply end the wait.
///
/// Blocks the thread. The process needs `CAP_NET_RAW`.
pub fn find_holders(
    link: u32,
    from: Mac,
    own: &[Mac],
    addresses: &[IpAddr],
    enough: usize,
    timeout: Duration,
) -> io::Result<Vec<(IpAddr, Mac)>> {
    let is_v6 = addresses.iter().any(IpAddr::is_ipv6);
    let ethertype = if is_v6 { IPV6 } else { ETHERTYPE };
    let socket = PacketSocket::open(link, u16::from_be_bytes(ethertype))?;
    let end = Instant::now() + timeout;
    let mut next = Instant::now();
    let mut found: Vec<(IpAddr, Mac)> = Vec::new();
    let mut frame = [0_u8; 128];
    while found.len() < enough {
        let now = Instant::now();
        if now >= end {
            break;
        }
        if now >= next {
            next = now + REPEAT;
            for address in addresses {
                socket.send(&match address {
                    IpAddr::V4(v4) => encode_request(from, *v4),
                    IpAddr::V6(v6) => encode_solicitation(from, *v6),
                })?;
            }
        }
        if !socket.wait(next.min(end).saturating_duration_since(now))? {
            continue;
        }
        let length = socket.receive(&mut frame)?.unwrap_or_default();
        let frame = frame.get(..length).unwrap_or_default();
        let reply = |address: &IpAddr| {
            let mac = match address {
                IpAddr::V4(v4) => decode_answer(frame, *v4),
                IpAddr::V6(v6) => decode_advertisement(frame, *v6),
            };
            mac.filter(|mac| !own.contains(mac))
        };
        for address in addresses {
            if let Some(mac) = reply(address).filter(|_| !found.iter().any(|(at, _)| at == address))
            {
                found.push((*address, mac));
            }
        }
    }
    Ok(found)
}

/// The sender IP address is 0.0.0.0.
fn encode_request(from: Mac, address: Ipv4Addr) -> Vec<u8> {
    [&[0xff; 6][..], &from.0, &ETHERTYPE, &KINDS, &REQUEST, &from.0, &[0; 4 + 6], &address.octets()]
        .concat()
}

/// The sender's MAC if the frame is an ARP reply from `address`.
fn decode_answer(frame: &[u8], address: Ipv4Addr) -> Option<Mac> {
    let is_reply = frame.get(12..14)? == ETHERTYPE
        && frame.get(14..20)? == KINDS
        && frame.get(20..22)? == REPLY
        && frame.get(28..32)? == address.octets();
    let mac: [u8; 6] = frame.get(22..28)?.try_into().ok()?;
    is_reply.then_some(Mac(mac))
}

/// The solicitation has no source address.
fn encode_solicitation(from: Mac, target: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = target.octets();
    // The solicited-node multicast address (RFC 4291, section 2.7.1).
    let to =
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    let icmp = |sum: u16| {
        let head = [SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        let mut icmp = [&head[..], &target.octets()].concat();
        icmp.splice(2..4, sum.to_be_bytes());
        icmp
    };
    let length = [0, 24];
    // RFC 8200, section 8.1: the sum is over the addresses, the length, the next header and the message.
    let pseudo = [&to.octets()[..], &[0, 0], &length, &[0, 0, 0, ICMPV6[0]], &icmp(0)].concat();
    let words =
        pseudo.chunks(2).map(|word| word.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0);
    [
        &[0x33, 0x33, 0xff, a, b, c][..],
        &from.0,
        &IPV6,
        &[0x60, 0, 0, 0],
        &length,
        &ICMPV6,
        &Ipv6Addr::UNSPECIFIED.octets(),
        &to.octets(),
        &icmp(sum),
    ]
    .concat()
}

/// The sender's MAC if the frame is a Neighbor Advertisement of `target`.
fn decode_advertisement(frame: &[u8], target: Ipv6Addr) -> Option<Mac> {
    let is_reply = frame.get(12..14)? == IPV6
        && frame.get(20..22)? == ICMPV6
        && *frame.get(54)? == ADVERTISEMENT
        && frame.get(62..78)? == target.octets();
    let mac: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
    is_reply.then_some(Mac(mac))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn reply(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
        let mut frame = encode_request(mac, Ipv4Addr::UNSPECIFIED);
        frame[20..22].copy_from_slice(&REPLY);
        frame[28..32].copy_from_slice(&address.octets());
        frame
    }

    #[test]
    fn probe_has_no_sender_ip() {
        let frame = encode_request(OWN, ADDRESS);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[22..28], OWN.0);
        assert_eq!(frame[28..32], [0; 4], "a probe");
        assert_eq!(frame[38..], ADDRESS.octets());
        assert_eq!(decode_answer(&frame, ADDRESS), None, "a probe is not a reply");
    }

    #[test]
    fn only_replies_for_the_address_count() {
        let other = Mac([2, 0, 0, 0, 0, 9]);
        assert_eq!(decode_answer(&reply(other, ADDRESS), ADDRESS), Some(other));
        assert_eq!(decode_answer(&reply(other, Ipv4Addr::new(192, 0, 2, 2)), ADDRESS), None);
        let whole = reply(other, ADDRESS);
        for length in 0..32 {
            assert_eq!(decode_answer(&whole[..length], ADDRESS), None, "{length}");
        }
    }

    #[test]
    fn solicitation_has_no_source_address() {
        let target: Ipv6Addr = "2001:db8::12:3456".parse().unwrap();
        let frame = encode_solicitation(OWN, target);
        let want = concat!(
            "3333ff123456",
            "020000000001",
            "86dd",
            "60000000",
            "0018",
            "3aff",
            "00000000000000000000000000000000",
            "ff0200000000000000000001ff123456",
            "8700",
            "e41e",
            "00000000",
            "20010db8000000000000000000123456",
        );
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, want);
        assert_eq!(decode_advertisement(&frame, target), None, "a solicitation is not a reply");
        let mut reply = frame;
        reply[54] = ADVERTISEMENT;
        assert_eq!(decode_advertisement(&reply, target), Some(OWN));
        assert_eq!(decode_advertisement(&reply, Ipv6Addr::LOCALHOST), None);
    }

    proptest! {
        #[test]
        fn junk_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            decode_answer(&bytes, ADDRESS);
            decode_advertisement(&bytes, Ipv6Addr::LOCALHOST);
        }
    }
}
