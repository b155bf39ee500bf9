//! Echo requests and replies of ICMP, as raw sockets have them.

/// The headers before the payload: of ICMP, and of IPv4 or IPv6.
const ICMP: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// The shortest payload: the nonce, twice as long as need be.
const PAYLOAD: usize = 16;

/// An echo request. `length` is that of the whole packet.
pub fn request(ipv6: bool, id: u16, nonce: u64, length: u16) -> Vec<u8> {
    let headers = ICMP + if ipv6 { IPV6 } else { IPV4 };
    let payload = usize::from(length).saturating_sub(headers).max(PAYLOAD);
    let mut out = vec![if ipv6 { 128 } else { 8 }, 0, 0, 0];
    out.extend(id.to_be_bytes());
    let [.., high, low] = nonce.to_be_bytes();
    out.extend([high, low]);
    out.extend(nonce.to_be_bytes());
    out.resize(ICMP + payload, 0);
    if !ipv6 {
        // The kernel fills in that of IPv6.
        let [high, low] = checksum(&out).to_be_bytes();
        if let Some(place) = out.get_mut(2..4) {
            place.copy_from_slice(&[high, low]);
        }
    }
    out
}

/// The nonce in an echo reply to a ping with this identifier.
pub fn reply(ipv6: bool, id: u16, packet: &[u8]) -> Option<u64> {
    // IPv4 hands over the IP header, too.
    let skip = if ipv6 { 0 } else { usize::from(packet.first()? & 0xf) * 4 };
    let (head, rest) = packet.get(skip..)?.split_first_chunk::<ICMP>()?;
    let [kind, code, _, _, high, low, ..] = *head;
    let wanted = if ipv6 { 129 } else { 0 };
    if (kind, code, u16::from_be_bytes([high, low])) != (wanted, 0, id) {
        return None;
    }
    rest.first_chunk().map(|nonce| u64::from_be_bytes(*nonce))
}

/// The checksum of the Internet (RFC 1071).
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

    #[test]
    fn lengths_are_those_of_the_whole_packet() {
        assert_eq!(request(false, 1, 2, 1450).len(), 1430);
        assert_eq!(request(true, 1, 2, 1430).len(), 1390);
        assert_eq!(request(false, 1, 2, 0).len(), 24);
    }

    #[test]
    fn a_reply_has_the_nonce_of_its_request() {
        for ipv6 in [false, true] {
            let mut packet = request(ipv6, 0xabcd, 0x0102_0304_0506_0708, 100);
            assert!(ipv6 || checksum(&packet) == 0, "with its checksum it adds up");
            packet[0] = if ipv6 { 129 } else { 0 };
            let packet = if ipv6 { packet } else { [[0x45; 20].to_vec(), packet].concat() };
            assert_eq!(reply(ipv6, 0xabcd, &packet), Some(0x0102_0304_0506_0708));
            assert_eq!(reply(ipv6, 0xabce, &packet), None);
            for length in 0..packet.len() {
                // What is cut short is no reply, and never a panic.
                assert!(reply(ipv6, 0xabcd, &packet[..length]).is_none_or(|nonce| nonce == 0x0102_0304_0506_0708));
            }
        }
    }
}
