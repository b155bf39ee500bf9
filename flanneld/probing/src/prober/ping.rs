//! ICMP echo requests and replies, as raw sockets send and receive them.

use types::Family;

/// Lengths in bytes of the headers before the payload: the ICMP header, and the IPv4 or IPv6 header.
const ICMP: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// Minimum length of the payload in bytes: twice the length of the nonce.
const MIN_PAYLOAD: usize = 16;

/// `length` is the length of the whole packet in bytes.
pub(super) fn request(family: Family, id: u16, nonce: u64, length: u16) -> Vec<u8> {
    let headers = ICMP + family.pick(IPV4, IPV6);
    let payload = usize::from(length).saturating_sub(headers).max(MIN_PAYLOAD);
    let mut out = vec![family.pick(8, 128), 0, 0, 0];
    out.extend(id.to_be_bytes());
    let [.., high, low] = nonce.to_be_bytes();
    out.extend([high, low]);
    out.extend(nonce.to_be_bytes());
    out.resize(ICMP + payload, 0);
    if family.is_v4() {
        // For IPv6, the kernel fills in the checksum.
        let [high, low] = checksum(&out).to_be_bytes();
        if let Some(place) = out.get_mut(2..4) {
            place.copy_from_slice(&[high, low]);
        }
    }
    out
}

/// The nonce of an ICMP echo reply with the identifier `id`.
pub(super) fn reply(family: Family, id: u16, packet: &[u8]) -> Option<u64> {
    // With IPv4 the packet begins with the IP header.
    let skip = family.pick(usize::from(packet.first()? & 0xf) * 4, 0);
    let (head, rest) = packet.get(skip..)?.split_first_chunk::<ICMP>()?;
    let [kind, code, _, _, high, low, ..] = *head;
    let wanted = family.pick(0, 129);
    if (kind, code, u16::from_be_bytes([high, low])) != (wanted, 0, id) {
        return None;
    }
    rest.first_chunk().map(|nonce| u64::from_be_bytes(*nonce))
}

/// The nonce of this node's probe from an ICMP error with which the destination refuses it. Such an error proves that
/// the path works.
pub(super) fn refusal(family: Family, port: u16, packet: &[u8]) -> Option<u64> {
    let skip = family.pick(usize::from(packet.first()? & 0xf) * 4, 0);
    let (head, question) = packet.get(skip..)?.split_first_chunk::<ICMP>()?;
    // Hosts send these codes: the port is closed, or the host's firewall rejects the packet. Errors of routers on the path prove nothing.
    let refuses =
        family.pick(matches!(head, [3, 3 | 9 | 10 | 13, ..]), matches!(head, [1, 1 | 4..=6, ..]));
    let ip = family.pick(usize::from(question.first()? & 0xf) * 4, IPV6);
    let is_udp = family.pick(question.get(9), question.get(6)) == Some(&17);
    let udp = question.get(ip..)?;
    if !refuses || !is_udp || udp.get(2..4)? != port.to_be_bytes() {
        return None;
    }
    // The magic and other fields precede the nonce.
    let message = udp.get(8..)?;
    let nonce = message.get(8..16)?.first_chunk::<8>()?;
    message.starts_with(b"flpr").then(|| u64::from_be_bytes(*nonce))
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Family::{V4, V6};

    #[test]
    fn ping_length_is_that_of_the_whole_packet() {
        assert_eq!(request(V4, 1, 2, 1450).len(), 1430);
        assert_eq!(request(V6, 1, 2, 1430).len(), 1390);
        assert_eq!(request(V4, 1, 2, 0).len(), 24);
    }

    #[test]
    fn refusal_has_the_nonce_of_its_question() {
        for (family, kind, code, is) in [
            (V4, 3, 3, true),
            (V4, 3, 1, false),
            (V4, 11, 0, false),
            (V6, 1, 4, true),
            (V6, 1, 0, false),
        ] {
            let udp = [
                &1u16.to_be_bytes()[..],
                &8473u16.to_be_bytes(),
                &[0; 4],
                b"flpr\x01\x01\0\x48",
                &7u64.to_be_bytes(),
            ]
            .concat();
            let mut ip = family.pick([vec![0x45], vec![0; 19]].concat(), vec![0; IPV6]);
            ip[family.pick(9, 6)] = 17;
            let error = [vec![kind, code, 0, 0, 0, 0, 0, 0], ip, udp].concat();
            let packet = if family.is_v6() { error } else { [[0x45; 20].to_vec(), error].concat() };
            assert_eq!(refusal(family, 8473, &packet), is.then_some(7), "{kind} {code}");
            assert_eq!(refusal(family, 8472, &packet), None);
            for length in 0..packet.len() {
                assert_eq!(refusal(family, 8473, &packet[..length]), None);
            }
        }
    }

    #[test]
    fn reply_has_the_nonce_of_its_request() {
        for family in Family::ALL {
            let mut packet = request(family, 0xabcd, 0x0102_0304_0506_0708, 100);
            assert!(
                family.is_v6() || checksum(&packet) == 0,
                "the checksum over the whole packet is 0"
            );
            packet[0] = family.pick(0, 129);
            let packet =
                if family.is_v6() { packet } else { [[0x45; 20].to_vec(), packet].concat() };
            assert_eq!(reply(family, 0xabcd, &packet), Some(0x0102_0304_0506_0708));
            assert_eq!(reply(family, 0xabce, &packet), None);
            for length in 0..packet.len() {
                // A truncated packet is no reply and never causes a panic.
                assert!(
                    reply(family, 0xabcd, &packet[..length])
                        .is_none_or(|nonce| nonce == 0x0102_0304_0506_0708)
                );
            }
        }
    }
}
