//! What becomes of a packet: sent to a peer, delivered, answered or dropped; decided from the packet's header and the table alone.

use super::packet::{Header, Version};
use super::table::{Peer, Table};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The reasons and their labels in one place.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them, in the order of [`Reason::index`].
            pub const ALL: [Reason; [$($label),*].len()] = [$(Reason::$name),*];

            /// The label in metrics.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$name => $label,)*
                }
            }
        }
    };
}

reasons! {
    /// Too short for the headers.
    Short = "short",
    /// Longer than the buffer that received it.
    Truncated = "truncated",
    /// Version, header length or packet length is wrong.
    Malformed = "malformed",
    /// An address that no packet between nodes can have.
    Martian = "martian",
    /// The datagram came from an address that is no peer's.
    UnknownPeer = "unknown_peer",
    /// The inner source is not the sending peer's.
    Spoofed = "spoofed",
    /// The inner destination is not in our subnets.
    NotOurs = "not_ours",
    /// The destination is in no peer's subnet.
    NoRoute = "no_route",
    /// No hop is left.
    TtlExceeded = "ttl_exceeded",
    /// Larger than the tunnel's MTU.
    TooBig = "too_big",
    /// Another VXLAN network's.
    BadVni = "bad_vni",
    /// The encapsulation's header is wrong.
    BadHeader = "bad_header",
    /// A frame of another protocol than IP.
    NotIp = "not_ip",
    /// A frame to another MAC than our VTEP's.
    WrongMac = "wrong_mac",
    /// Would be sent into the tunnel again.
    Loop = "loop",
    /// IPv6 to a peer that does not carry it.
    NoV6Peer = "no_v6_peer",
    /// A congestion mark that the inner sender does not understand.
    Ecn = "ecn",
    /// What the TUN says about segments or checksums does not fit the packet.
    BadOffload = "bad_offload",
    /// The socket refused it.
    SendFailed = "send_failed",
    /// The TUN refused it.
    WriteFailed = "write_failed",
}

impl Reason {
    /// Its place in [`Reason::ALL`], for arrays of counters.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// For a packet that came in: what is behind it, and what to do. For the log.
    pub fn hint(self) -> &'static str {
        match self {
            Reason::Short | Reason::Truncated | Reason::Malformed | Reason::BadHeader => {
                "its headers or lengths are wrong; another program's datagram, or damaged on the way: see who sends to this port"
            }
            Reason::UnknownPeer => {
                "no lease names this public address; a node that leaves by another address than it publishes (see --iface and --public-ip there) or a stranger"
            }
            Reason::Spoofed => {
                "its source is not the sending node's; two nodes with one subnet, or forged: compare `flannelctl leases` with the subnet.env there"
            }
            Reason::NotOurs => "its destination is not in this node's subnet; the sender has an old lease of it: compare `flannelctl leases` there",
            Reason::Martian => "no packet between nodes has such an address, or it is a broadcast; see what sends it there",
            Reason::TtlExceeded => "no hop is left; look for a loop in the routes of both nodes",
            Reason::BadVni => "it is of another VXLAN network; compare VNI and Port in the network configuration of both",
            Reason::WrongMac => {
                "it is for another VTEP; the sender has an old MAC of this node: compare VtepMAC in this node's lease with `bridge fdb` there"
            }
            Reason::NotIp => "only IPv4 and IPv6 travel here; the sender asks by ARP for what its lease should tell: see its neighbour table",
            Reason::Ecn => "a router marked it as having met congestion, and its sender does not understand such marks",
            Reason::Loop | Reason::NoRoute | Reason::TooBig | Reason::NoV6Peer | Reason::BadOffload | Reason::SendFailed | Reason::WriteFailed => {
                "see docs/operations.md"
            }
        }
    }
}

/// How much of a received packet is checked beyond its lengths, version and TTL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// The datagram is from a peer, to our subnets, and a source in the network is in the peer's own subnets, or the peer itself.
    /// A source outside the network passes: nodes may forward for others.
    #[default]
    Cluster,
    /// As `Cluster`, and a source outside the network does not pass.
    Strict,
    /// Nothing: neither the sender nor any inner address, martians included.
    Off,
}

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

/// Whether no packet between nodes can have this address: "this network", loopback, link-local, multicast, class E with broadcast;
/// unspecified, loopback, link-local, multicast and IPv4-mapped.
#[inline]
pub fn martian(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => martian_v4(*ip),
        IpAddr::V6(ip) => martian_v6(*ip),
    }
}

#[inline]
fn martian_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    matches!(a, 0 | 127 | 224..) || (a, b) == (169, 254)
}

#[inline]
fn martian_v6(ip: Ipv6Addr) -> bool {
    let bits = ip.to_bits();
    bits <= 1 || bits >> 120 == 0xff || bits >> 118 == 0xfe80 >> 6 || bits >> 32 == 0xffff
}

#[cfg(test)]
mod tests;
