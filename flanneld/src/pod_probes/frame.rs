//! Ethernet frames of pod probes.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use netstate::host::port::MAC;
use netstate::names::Mac;
use std::net::IpAddr;

/// Initial IPv4 TTL or IPv6 hop limit of pod probes.
const TTL: u8 = 64;

/// The link between the port of pod probes and the bridge.
pub(super) struct Ends {
    /// Of the port of pod probes and of the bridge.
    pub macs: (Mac, Mac),
    /// Source address of pod probes.
    pub from: IpAddr,
}

/// A frame that the port of pod probes received.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub from: IpAddr,
    pub to_port: u16,
    /// Of the UDP datagram.
    pub payload: &'a [u8],
}

impl Ends {
    /// Builds an Ethernet frame with a UDP datagram. `None` if source and destination belong to different address
    /// families.
    pub(super) fn frame(
        &self,
        to: IpAddr,
        from_port: u16,
        to_port: u16,
        payload: &[u8],
    ) -> Option<Vec<u8>> {
        let link = PacketBuilder::ethernet2(self.macs.0.0, self.macs.1.0);
        let packet = match (self.from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from.octets(), to.octets(), TTL),
            (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from.octets(), to.octets(), TTL),
            _ => return None,
        };
        let packet = packet.udp(from_port, to_port);
        let mut frame = Vec::with_capacity(packet.size(payload.len()));
        packet.write(&mut frame, payload).ok()?;
        Some(frame)
    }

    /// Parses a frame with a UDP datagram to the port of pod probes. Ignores the checksum, which a device may compute
    /// later; the payload proves the sender.
    pub(super) fn read<'a>(&self, frame: &'a [u8]) -> Option<Frame<'a>> {
        if frame.get(..MAC.0.len()) != Some(&MAC.0) {
            return None;
        }
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let (from, to): (IpAddr, IpAddr) = match packet.net? {
            NetSlice::Ipv4(v4) => {
                (v4.header().source_addr().into(), v4.header().destination_addr().into())
            }
            NetSlice::Ipv6(v6) => {
                (v6.header().source_addr().into(), v6.header().destination_addr().into())
            }
            NetSlice::Arp(_) => return None,
        };
        let TransportSlice::Udp(udp) = packet.transport? else {
            return None;
        };
        (to == self.from).then(|| Frame {
            from,
            to_port: udp.destination_port(),
            payload: udp.payload(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BRIDGE: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn ends(from: &str) -> Ends {
        Ends { macs: (MAC, BRIDGE), from: from.parse().unwrap() }
    }

    /// From the bridge to the port of pod probes.
    fn answer(from: &str, to: &str) -> Vec<u8> {
        let other = Ends { macs: (BRIDGE, MAC), from: from.parse().unwrap() };
        other.frame(to.parse().unwrap(), 8473, 50_000, b"flpr").unwrap()
    }

    #[test]
    fn datagrams_for_the_probe_are_read() {
        for (ours, peer) in [("10.5.1.254", "10.5.2.0"), ("fd00::ffff", "fd00:2::")] {
            let ends = ends(ours);
            let frame = answer(peer, ours);
            let want = Frame { from: peer.parse().unwrap(), to_port: 50_000, payload: b"flpr" };
            assert_eq!(ends.read(&frame), Some(want));
            let sent = ends.frame(peer.parse().unwrap(), 50_000, 8473, b"flpr").unwrap();
            assert_eq!((&sent[..6], &sent[6..12]), (&BRIDGE.0[..], &MAC.0[..]));
            assert_eq!(ends.read(&sent), None, "its own");
            for length in 0..frame.len() {
                ends.read(&frame[..length]);
            }
        }
        assert_eq!(ends("10.5.1.254").read(&answer("10.5.2.0", "10.5.1.7")), None);
        assert_eq!(ends("10.5.1.254").frame("fd00::1".parse().unwrap(), 1, 2, b""), None);
    }

    proptest! {
        #[test]
        fn junk_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [&MAC.0[..], &bytes].concat();
            ends("10.5.1.254").read(&bytes);
        }
    }
}
