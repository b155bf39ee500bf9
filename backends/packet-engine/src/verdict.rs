//! Decides whether a packet is sent, delivered, rejected with an ICMP error, or dropped. This depends only on
//! the packet and the forwarding table.

use crate::drop_error::DropError;
use crate::flow::udp_destination;
use crate::packet::Header;
use crate::packet::martian::is_martian;
use crate::table::{Checks, Peer, Table, TableSettings};
use std::net::IpAddr;

/// An ICMP error for the sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp {
    /// IPv6: no route to destination.
    NetUnreachable,
    /// TTL or hop limit exceeded in transit.
    TimeExceeded,
    /// Fragmentation needed or packet too big, with the MTU.
    TooBig(u16),
}

/// Why a packet from the TUN device is dropped, and the ICMP error for its sender.
pub type RejectError = (Option<Icmp>, DropError);

/// The peer to which a packet from the TUN device is sent, in a routed tunnel with a decremented TTL. Its
/// longest segment has `longest` bytes.
///
/// ```
/// use etherparse::PacketBuilder;
/// use packet_engine::packet::Header;
/// use packet_engine::table::{Checks, Networks, Peer, Table, TableSettings};
/// use packet_engine::verdict::judge_outbound_packet;
///
/// let settings = TableSettings {
///     networks: Networks { v4: Some("10.244.0.0/16".parse()?), v6: None },
///     own: Networks { v4: Some("10.244.1.0/24".parse()?), v6: None },
///     checks: Checks::Cluster,
///     mtu: 1450,
///     routed: false,
///     encap_port: 8472,
///     address: None,
/// };
/// let address = "192.0.2.2:8472".parse()?;
/// let peer = Peer { address, mac: [2; 6], carries_v6: true, outer_ecn: true };
/// let table = Table::build(settings, [("10.244.2.0/24".parse()?, peer)]);
/// let mut packet = Vec::new();
/// let datagram = PacketBuilder::ipv4([10, 244, 1, 7], [10, 244, 2, 7], 64).udp(5000, 53);
/// datagram.write(&mut packet, b"?")?;
/// let header = Header::parse(&packet).unwrap();
/// assert_eq!(judge_outbound_packet(&header, &packet, &table, packet.len()), Ok(&peer));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[inline]
pub fn judge_outbound_packet<'t>(
    header: &Header,
    packet: &[u8],
    table: &'t Table,
    longest: usize,
) -> Result<&'t Peer, RejectError> {
    if is_nested(header, packet, table) {
        return Err((None, DropError::Loop));
    }
    if is_martian(&header.destination) {
        return Err((None, DropError::Martian));
    }
    let unreachable = Some(Icmp::NetUnreachable);
    let peer = table.lookup(header.destination).ok_or((unreachable, DropError::NoRoute))?;
    if header.family.is_v6() && !peer.carries_v6 {
        return Err((unreachable, DropError::NoV6Peer));
    }
    let TableSettings { routed, mtu, .. } = table.settings;
    if routed && header.ttl <= 1 {
        return Err((Some(Icmp::TimeExceeded), DropError::TtlExceeded));
    }
    if longest > usize::from(mtu) {
        return Err((Some(Icmp::TooBig(mtu)), DropError::TooBig));
    }
    Ok(peer)
}

/// The packet arrived in a datagram from the address `from`. The error is the first reason to drop it.
#[inline]
pub fn judge_inbound_packet(
    header: &Header,
    packet: &[u8],
    from: IpAddr,
    table: &Table,
) -> Result<(), DropError> {
    if table.settings.checks != Checks::Off {
        check_sender_and_addresses(header, from.to_canonical(), table)?;
    }
    if header.ttl == 0 {
        return Err(DropError::TtlExceeded);
    }
    if is_nested(header, packet, table) { Err(DropError::Loop) } else { Ok(()) }
}

/// Whether a packet is itself a datagram of the tunnel. A pod may build one, or a route to a node may lead
/// through the tunnel.
#[inline]
fn is_nested(header: &Header, packet: &[u8], table: &Table) -> bool {
    udp_destination(packet, header).is_some_and(|to| table.is_tunnel_end(to))
}

#[inline]
fn check_sender_and_addresses(
    header: &Header,
    from: IpAddr,
    table: &Table,
) -> Result<(), DropError> {
    // Most packets come from a pod of the sending peer, so this lookup usually identifies the peer as well.
    let of_sender = table.lookup(header.source).is_some_and(|peer| peer.address.ip() == from);
    if !of_sender && !table.is_peer_address(from) {
        return Err(DropError::UnknownPeer);
    }
    if !table.in_own_subnet(header.destination) {
        return Err(if is_martian(&header.destination) {
            DropError::Martian
        } else {
            DropError::NotOurs
        });
    }
    // A broadcast would reach the host's own programs and cause replies.
    if is_martian(&header.source) || table.is_own_broadcast(header.destination) {
        return Err(DropError::Martian);
    }
    // If the network contains the nodes, their own addresses do not belong to pods.
    let of_a_pod = || table.in_network(header.source) && header.source != from;
    if table.in_own_subnet(header.source)
        || !of_sender && (table.settings.checks == Checks::Strict || of_a_pod())
    {
        return Err(DropError::Spoofed);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
