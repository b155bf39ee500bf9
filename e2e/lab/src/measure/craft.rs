//! Packets built byte by byte, valid and invalid, for tests of packets that flannel must drop.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto,
    socket,
};
use std::os::fd::AsRawFd;

use crate::net::netns::Netns;

const UDP: u8 = 17;

/// The checksums are valid.
pub fn udp_packet(source: SocketAddr, destination: SocketAddr, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let mut datagram = [source.port(), destination.port(), length, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect::<Vec<u8>>();
    datagram.extend(payload);
    let sum = match transport_checksum(source.ip(), destination.ip(), UDP, &datagram) {
        0 => 0xffff,
        sum => sum,
    };
    write_u16_at(&mut datagram, 6, sum);
    ip_packet(source.ip(), destination.ip(), UDP, ttl, &datagram)
}

fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let length = (segment.len() as u32).to_be_bytes();
    internet_checksum(
        &[
            &address_octets(source),
            &address_octets(destination),
            &length[..],
            &[0, 0, 0, protocol],
            segment,
        ]
        .concat(),
    )
}

fn ip_packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ttl: u8,
    payload: &[u8],
) -> Vec<u8> {
    let addresses = [address_octets(source), address_octets(destination)].concat();
    let length = payload.len() as u16;
    let mut packet = if source.is_ipv4() {
        let [high, low] = (20 + length).to_be_bytes();
        let mut header = vec![0x45, 0, high, low, 0x12, 0x34, 0, 0, ttl, protocol, 0, 0];
        header.extend(&addresses);
        let sum = internet_checksum(&header);
        write_u16_at(&mut header, 10, sum);
        header
    } else {
        let [high, low] = length.to_be_bytes();
        let mut header = vec![0x60, 0, 0, 0, high, low, protocol, ttl];
        header.extend(&addresses);
        header
    };
    packet.extend(payload);
    packet
}

/// The VXLAN header and an Ethernet frame.
pub fn vxlan_datagram(vni: u32, to: [u8; 6], kind: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![8, 0, 0, 0];
    frame.extend((vni << 8).to_be_bytes());
    frame.extend(to);
    frame.extend([2, 0, 0, 0, 0, 0x66]);
    frame.extend(kind.to_be_bytes());
    frame.extend(packet);
    frame
}

/// Port 0 lets the kernel choose the port.
pub fn send_from(
    netns: &Netns,
    from: SocketAddr,
    to: SocketAddr,
    datagrams: &[Vec<u8>],
) -> Result<()> {
    let socket = netns
        .run(|| UdpSocket::bind(from))?
        .with_context(|| format!("binding {from} in {}", netns.name()))?;
    for datagram in datagrams {
        socket
            .send_to(datagram, to)
            .with_context(|| format!("{} bytes to {to}", datagram.len()))?;
    }
    Ok(())
}

/// Whole IP packets, unchanged. The kernel routes them by their destination.
pub fn send_raw(netns: &Netns, packets: &[Vec<u8>]) -> Result<()> {
    let send = || -> Result<()> {
        let open =
            |family| socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw);
        let (v4, v6) = (open(AddressFamily::Inet)?, open(AddressFamily::Inet6)?);
        for packet in packets {
            let sent = if packet.first().is_some_and(|first| first >> 4 == 4) {
                let to: [u8; 4] = packet.get(16..20).unwrap_or_default().try_into()?;
                let to = SockaddrIn::from(std::net::SocketAddrV4::new(to.into(), 0));
                sendto(v4.as_raw_fd(), packet, &to, MsgFlags::empty())
            } else {
                let to: [u8; 16] = packet.get(24..40).unwrap_or_default().try_into()?;
                let to = SockaddrIn6::from(std::net::SocketAddrV6::new(to.into(), 0, 0, 0));
                sendto(v6.as_raw_fd(), packet, &to, MsgFlags::empty())
            };
            sent.with_context(|| format!("cannot send a packet of {} bytes", packet.len()))?;
        }
        Ok(())
    };
    netns.run(send)?.with_context(|| format!("cannot send raw packets in {}", netns.name()))
}

fn address_octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// RFC 1071.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| {
        u32::from(pair.first().copied().unwrap_or(0)) << 8
            | u32::from(pair.get(1).copied().unwrap_or(0))
    };
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn write_u16_at(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_right() {
        let packet =
            udp_packet("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap(), 64, b"abc");
        assert_eq!((packet.len(), internet_checksum(&packet[..20])), (31, 0));
        let pseudo = [&packet[12..20], &[0, 17, 0, 11], &packet[20..]].concat();
        assert_eq!(internet_checksum(&pseudo), 0);
        let packet =
            udp_packet("[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap(), 64, b"abc");
        assert_eq!(
            internet_checksum(&[&packet[8..40], &[0, 17, 0, 11], &packet[40..]].concat()),
            0
        );
    }
}
