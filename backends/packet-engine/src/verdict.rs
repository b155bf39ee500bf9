//! Decides whether a packet is sent, delivered, rejected with an ICMP error, or dropped. This depends only on
//! the packet and the forwarding table.

use crate::flow::udp_destination;
use crate::martian::martian;
use crate::packet::{Header, Version};
use crate::reason::Reason;
use crate::table::{Checks, Peer, Table};
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

/// The verdict on a packet from the TUN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound<'t> {
    /// In a routed tunnel, with a decremented TTL.
    Send(&'t Peer),
    /// Drop it and send an ICMP error.
    Reply(Icmp, Reason),
    Drop(Reason),
}

/// For a GSO packet, `segment_len` is the length of its largest segment in bytes.
#[inline]
pub fn outbound<'t>(
    header: &Header,
    packet: &[u8],
    table: &'t Table,
    segment_len: Option<usize>,
) -> Outbound<'t> {
    if is_nested(header, packet, table) {
        return Outbound::Drop(Reason::Loop);
    }
    if martian(&header.destination) {
        return Outbound::Drop(Reason::Martian);
    }
    let Some(peer) = table.lookup(header.destination) else {
        return Outbound::Reply(Icmp::NetUnreachable, Reason::NoRoute);
    };
    if header.version == Version::V6 && !peer.carries_v6 {
        return Outbound::Reply(Icmp::NetUnreachable, Reason::NoV6Peer);
    }
    if table.routed && header.ttl <= 1 {
        return Outbound::Reply(Icmp::TimeExceeded, Reason::TtlExceeded);
    }
    if segment_len.unwrap_or(packet.len()) > usize::from(table.mtu) {
        return Outbound::Reply(Icmp::TooBig(table.mtu), Reason::TooBig);
    }
    Outbound::Send(peer)
}

/// The packet arrived in a datagram from the address `from`. The error is the first reason to drop it.
#[inline]
pub fn inbound(header: &Header, packet: &[u8], from: IpAddr, table: &Table) -> Result<(), Reason> {
    if table.checks != Checks::Off {
        from_a_peer_to_us(header, from.to_canonical(), table)?;
    }
    if header.ttl == 0 {
        return Err(Reason::TtlExceeded);
    }
    if is_nested(header, packet, table) { Err(Reason::Loop) } else { Ok(()) }
}

/// Whether a packet is itself a datagram of the tunnel. A pod may build one, or a route to a node may lead
/// through the tunnel.
#[inline]
fn is_nested(header: &Header, packet: &[u8], table: &Table) -> bool {
    udp_destination(packet, header).is_some_and(|to| table.is_tunnel_end(to))
}

#[inline]
fn from_a_peer_to_us(header: &Header, from: IpAddr, table: &Table) -> Result<(), Reason> {
    // Most packets come from a pod of the sending peer, so this lookup usually identifies the peer as well.
    let of_sender = table.lookup(header.source).is_some_and(|peer| peer.address.ip() == from);
    if !of_sender && !table.knows(from) {
        return Err(Reason::UnknownPeer);
    }
    if !table.is_own(header.destination) {
        return Err(if martian(&header.destination) { Reason::Martian } else { Reason::NotOurs });
    }
    // A broadcast would reach the host's own programs and cause replies.
    if martian(&header.source) || table.is_broadcast(header.destination) {
        return Err(Reason::Martian);
    }
    // If the network contains the nodes, their own addresses do not belong to pods.
    let of_a_pod = || table.in_network(header.source) && header.source != from;
    if table.is_own(header.source) || !of_sender && (table.checks == Checks::Strict || of_a_pod()) {
        return Err(Reason::Spoofed);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
