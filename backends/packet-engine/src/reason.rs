//! Reasons for dropping packets.

/// Defines the reasons and their labels in one place.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Reason why the engine dropped a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons, in the order of [`Reason::index`].
            pub const ALL: [Reason; [$($label),*].len()] = [$(Reason::$name),*];

            /// Returns the value of the metric label `reason`.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$name => $label,)*
                }
            }
        }
    };
}

reasons! {
    /// Packet that is too short for its headers.
    Short = "short",
    /// Packet that is longer than its receive buffer.
    Truncated = "truncated",
    /// Invalid version, header length or packet length.
    Malformed = "malformed",
    /// Packet with an address that is invalid between nodes.
    Martian = "martian",
    /// Datagram that is not from a peer's address.
    UnknownPeer = "unknown_peer",
    /// Inner source that is not in the sending peer's subnets.
    Spoofed = "spoofed",
    /// Inner destination that is not in this node's subnets.
    NotOurs = "not_ours",
    /// Destination that is in no peer's subnet.
    NoRoute = "no_route",
    /// Packet whose TTL has expired.
    TtlExceeded = "ttl_exceeded",
    /// Packet that is larger than the tunnel's MTU.
    TooBig = "too_big",
    /// Packet of another VXLAN network.
    BadVni = "bad_vni",
    /// Invalid encapsulation header.
    BadHeader = "bad_header",
    /// Frame that carries a protocol other than IP.
    NotIp = "not_ip",
    /// Frame for a MAC other than the MAC of this node's VTEP.
    WrongMac = "wrong_mac",
    /// Packet that would enter the tunnel again.
    Loop = "loop",
    /// IPv6 packet for a peer that does not accept IPv6.
    NoV6Peer = "no_v6_peer",
    /// Datagram with a congestion mark whose inner sender does not support ECN.
    Ecn = "ecn",
    /// Peer that has no session with this node yet, or datagram that belongs to no session.
    NoSession = "no_session",
    /// Peer whose endpoint is unknown, or endpoint whose address family no socket has.
    NoEndpoint = "no_endpoint",
    /// Datagram that fails authentication, because it is damaged or forged.
    BadTag = "bad_tag",
    /// Datagram that this node received before, or datagram that is too old.
    Replayed = "replayed",
    /// Handshake message for a key other than this node's key, or handshake message that failed authentication.
    BadHandshake = "bad_handshake",
    /// Handshake messages that exceed the capacity of this node.
    HandshakeFlood = "handshake_flood",
    /// Virtio header that does not match the packet.
    BadOffload = "bad_offload",
    /// Refusal of the packet by the socket.
    SendFailed = "send_failed",
    /// Refusal of the packet by the TUN device.
    WriteFailed = "write_failed",
    /// Source that exceeds its rate limit for handshakes.
    HandshakeLimit = "handshake_limit",
}

impl Reason {
    /// Returns the index in [`Reason::ALL`], for arrays of counters.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the likely cause of a drop and the remedy, for the log line about received packets.
    pub fn hint(self) -> &'static str {
        match self {
            Reason::Short | Reason::Truncated | Reason::Malformed | Reason::BadHeader => {
                "the packet's headers or lengths are invalid: the packet comes from another program or was damaged in transit. Find the host that sends to this port"
            }
            Reason::UnknownPeer => {
                "no lease names this public address: the sender is unknown, or is a node that sends from an address other than its announced address. Check --iface and --public-ip on that node"
            }
            Reason::Spoofed => {
                "the packet's source is not in the sending node's subnet: the packet is forged, or two nodes use one subnet. Compare `flannelctl leases` with subnet.env on the sending node"
            }
            Reason::NotOurs => {
                "the packet's destination is not in this node's subnet: the sender uses an outdated lease; check `flannelctl leases` on the sender"
            }
            Reason::Martian => {
                "the packet's source or destination is invalid between nodes, or its destination is a broadcast address; check which program sends such packets on the sending node"
            }
            Reason::TtlExceeded => {
                "the packet's TTL has expired; check the routes of both nodes for a loop"
            }
            Reason::BadVni => {
                "the packet belongs to another VXLAN network; compare VNI and Port in the network configuration of both nodes"
            }
            Reason::WrongMac => {
                "the packet is for another VTEP: the sender uses an outdated MAC of this node. Compare VtepMAC in this node's lease with `bridge fdb` on the sender"
            }
            Reason::NotIp => {
                "flanneld accepts only IPv4 and IPv6: the sender may use ARP for an address whose MAC the lease provides; check the sender's neighbour table"
            }
            Reason::Ecn => {
                "a router marked the packet for congestion, but the packet's sender does not support ECN"
            }
            Reason::NoSession => {
                "the packet belongs to no session: this node or the sender restarted, and the next handshake fixes the fault. If the fault persists, compare the public keys in `flannelctl leases` on both nodes"
            }
            Reason::BadTag => {
                "the packet's authentication fails: the packet was damaged in transit or is forged"
            }
            Reason::Replayed => {
                "this node received the packet before, or the packet is too old: the network or an attacker repeats or delays packets"
            }
            Reason::BadHandshake => {
                "the packet's sender has an outdated public key of this node, or is not in the cluster; also compare the preshared keys"
            }
            Reason::HandshakeLimit => {
                "during a flood of handshakes, the sender exceeds the limit of handshakes per source: find the sender at that address"
            }
            Reason::HandshakeFlood => {
                "more handshakes arrive than this node can process: find the host that sends to this port"
            }
            Reason::Loop => {
                "the packet's destination is the tunnel's port on a node, so flanneld would send the packet into the tunnel again. A pod of the sending node sends tunnel packets itself; see --encap-bar-pods for that node"
            }
            Reason::NoEndpoint
            | Reason::NoRoute
            | Reason::TooBig
            | Reason::NoV6Peer
            | Reason::BadOffload
            | Reason::SendFailed
            | Reason::WriteFailed => "see docs/monitoring.md",
        }
    }
}
