//! What becomes of a packet: sent to a peer, delivered, answered or dropped; decided from the packet's header and the table alone.

use crate::martian::martian;
use crate::packet::{Header, Version};
use crate::reason::Reason;
use crate::table::{Checks, Peer, Table};
use std::net::IpAddr;

/// An ICMP error to be sent back to where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp {
    /// Network unreachable; IPv6: no route to destination.
    NetUnreachable,
    /// TTL or hop limit exceeded in transit.
    TimeExceeded,
    /// Fragmentation needed, or packet too big, with the MTU that fits.
    TooBig(u16),
}

/// The verdict on a packet from the TUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound<'t> {
    /// To be sent; in a routed tunnel with one hop less.
    Send(&'t Peer),
    /// Dropped, and its sender told.
    Reply(Icmp, Reason),
    /// Dropped.
    Drop(Reason),
}

/// Judges a packet from the TUN. `segment_len` is given for a super-packet: the length of the largest packet that comes out of it.
#[inline]
pub fn outbound<'t>(header: &Header, packet: &[u8], table: &'t Table, segment_len: Option<usize>) -> Outbound<'t> {
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

/// Judges a packet that came in a datagram from the address `from`.
///
/// # Errors
/// The first reason against it.
#[inline]
pub fn inbound(header: &Header, from: IpAddr, table: &Table) -> Result<(), Reason> {
    if table.checks != Checks::Off {
        from_a_peer_to_us(header, from.to_canonical(), table)?;
    }
    if header.ttl == 0 { Err(Reason::TtlExceeded) } else { Ok(()) }
}

#[inline]
fn from_a_peer_to_us(header: &Header, from: IpAddr, table: &Table) -> Result<(), Reason> {
    // Nearly every packet is from a pod of the peer that sends it, so this lookup finds the peer too.
    let of_sender = table.lookup(header.source).is_some_and(|peer| peer.address.ip() == from);
    if !of_sender && !table.knows(from) {
        return Err(Reason::UnknownPeer);
    }
    if !table.is_own(header.destination) {
        return Err(if martian(&header.destination) { Reason::Martian } else { Reason::NotOurs });
    }
    // A broadcast would reach the host's own programs, and whoever answers it.
    if martian(&header.source) || table.is_broadcast(header.destination) {
        return Err(Reason::Martian);
    }
    // Where the network contains the nodes, their own addresses are no pod's.
    let of_a_pod = || table.in_network(header.source) && header.source != from;
    if table.is_own(header.source) || !of_sender && (table.checks == Checks::Strict || of_a_pod()) {
        return Err(Reason::Spoofed);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
