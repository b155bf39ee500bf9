//! ARP probe (RFC 5227, section 2.1.1) that detects whether another host uses an IPv4 address.

use crate::names::Mac;
use crate::packet_socket::PacketSocket;
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Length in bytes of an ARP frame without padding: the Ethernet header and 28 bytes of ARP (RFC 826).
const FRAME: usize = 14 + 28;
/// EtherType of ARP.
const ETHERTYPE: [u8; 2] = [0x08, 0x06];
/// ARP fields for Ethernet and IPv4: hardware type, protocol type, and the lengths in bytes of a MAC and an IPv4 address.
const KINDS: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// Sends an ARP probe for an address on a link. Returns the MAC of another host that replies within the
/// timeout. This function ignores replies from MACs in `own`.
///
/// The probe has the sender IP address 0.0.0.0, so other hosts do not change their neighbour tables. This
/// function blocks the thread. The process needs `CAP_NET_RAW`.
///
/// # Errors
/// Returns an error if this function cannot open, read or write the packet socket.
pub fn other_holder(
    link: u32,
    from: Mac,
    own: &[Mac],
    address: Ipv4Addr,
    timeout: Duration,
) -> io::Result<Option<Mac>> {
    let socket = PacketSocket::open(link, u16::from_be_bytes(ETHERTYPE))?;
    socket.send(&request(from, address))?;
    let end = Instant::now() + timeout;
    let mut frame = [0_u8; 128];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || !socket.wait(left)? {
            return Ok(None);
        }
        let length = socket.receive(&mut frame)?.unwrap_or_default();
        let answer = frame.get(..length).and_then(|frame| answer(frame, address));
        if let Some(mac) = answer.filter(|mac| !own.contains(mac)) {
            return Ok(Some(mac));
        }
    }
}

/// Builds an ARP probe, whose sender IP address is 0.0.0.0.
fn request(from: Mac, address: Ipv4Addr) -> [u8; FRAME] {
    let mut frame = [0_u8; FRAME];
    let parts: [&[u8]; 8] = [
        &[0xff; 6],
        &from.0,
        &ETHERTYPE,
        &KINDS,
        &REQUEST,
        &from.0,
        &[0; 4 + 6],
        &address.octets(),
    ];
    let bytes = parts.into_iter().flatten();
    frame
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    frame
}

/// Returns the sender's MAC if the frame is an ARP reply from `address`.
fn answer(frame: &[u8], address: Ipv4Addr) -> Option<Mac> {
    let is_reply = frame.get(12..14)? == ETHERTYPE
        && frame.get(14..20)? == KINDS
        && frame.get(20..22)? == REPLY
        && frame.get(28..32)? == address.octets();
    let mac: [u8; 6] = frame.get(22..28)?.try_into().ok()?;
    is_reply.then_some(Mac(mac))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    /// Builds an ARP reply of another host.
    fn reply(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
        let mut frame = request(mac, Ipv4Addr::UNSPECIFIED).to_vec();
        frame[20..22].copy_from_slice(&REPLY);
        frame[28..32].copy_from_slice(&address.octets());
        frame
    }

    #[test]
    fn probe_has_no_sender_ip() {
        let frame = request(OWN, ADDRESS);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[22..28], OWN.0);
        assert_eq!(frame[28..32], [0; 4], "a probe");
        assert_eq!(frame[38..], ADDRESS.octets());
        assert_eq!(answer(&frame, ADDRESS), None, "a probe is not a reply");
    }

    #[test]
    fn only_replies_for_the_address_count() {
        let other = Mac([2, 0, 0, 0, 0, 9]);
        assert_eq!(answer(&reply(other, ADDRESS), ADDRESS), Some(other));
        assert_eq!(
            answer(&reply(other, Ipv4Addr::new(192, 0, 2, 2)), ADDRESS),
            None
        );
        let whole = reply(other, ADDRESS);
        for length in 0..32 {
            assert_eq!(answer(&whole[..length], ADDRESS), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn junk_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            answer(&bytes, ADDRESS);
        }
    }
}
