//! Reasons for dropping packets.

/// Defines the reasons and their labels in one place.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Reason why a packet was dropped.
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
    /// The packet is too short for its headers.
    Short = "short",
    /// The packet is longer than the buffer that received it.
    Truncated = "truncated",
    /// The version, header length or packet length is invalid.
    Malformed = "malformed",
    /// An address of the packet is invalid between nodes.
    Martian = "martian",
    /// The datagram is not from a peer's address.
    UnknownPeer = "unknown_peer",
    /// The inner source is not in the sending peer's subnets.
    Spoofed = "spoofed",
    /// The inner destination is not in this node's subnets.
    NotOurs = "not_ours",
    /// The destination is in no peer's subnet.
    NoRoute = "no_route",
    /// The TTL has expired.
    TtlExceeded = "ttl_exceeded",
    /// The packet is larger than the tunnel's MTU.
    TooBig = "too_big",
    /// The packet belongs to another VXLAN network.
    BadVni = "bad_vni",
    /// The encapsulation header is invalid.
    BadHeader = "bad_header",
    /// The frame carries a protocol other than IP.
    NotIp = "not_ip",
    /// The frame is for a MAC other than that of this node's VTEP.
    WrongMac = "wrong_mac",
    /// The packet would enter the tunnel again.
    Loop = "loop",
    /// The packet is IPv6, but the peer does not accept IPv6.
    NoV6Peer = "no_v6_peer",
    /// The datagram carries a congestion mark, but the inner sender does not support ECN.
    Ecn = "ecn",
    /// The peer has no session with this node yet, or the datagram belongs to no session.
    NoSession = "no_session",
    /// The peer's endpoint is unknown, or no socket has the address family of that endpoint.
    NoEndpoint = "no_endpoint",
    /// The datagram fails authentication, because it is damaged or forged.
    BadTag = "bad_tag",
    /// This node received the datagram before, or the datagram is too old.
    Replayed = "replayed",
    /// The handshake message is for another key than this node's, or authentication of its sender failed.
    BadHandshake = "bad_handshake",
    /// More handshake messages arrive than this node can handle.
    HandshakeFlood = "handshake_flood",
    /// The virtio header does not match the packet.
    BadOffload = "bad_offload",
    /// The socket refused the packet.
    SendFailed = "send_failed",
    /// The TUN device refused the packet.
    WriteFailed = "write_failed",
    /// The source exceeds its rate limit for handshakes.
    HandshakeLimit = "handshake_limit",
}

impl Reason {
    /// Returns the index in [`Reason::ALL`], for arrays of counters.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the likely cause and the remedy for a received packet, for the log.
    pub fn hint(self) -> &'static str {
        match self {
            Reason::Short | Reason::Truncated | Reason::Malformed | Reason::BadHeader => {
                "its headers or lengths are wrong: it comes from another program or was damaged in transit; check who sends to this port"
            }
            Reason::UnknownPeer => {
                "no lease names this public address: the sender is unknown, or a node that uses another address than it announces; check --iface and --public-ip there"
            }
            Reason::Spoofed => {
                "its source is not in the sending node's subnet: it is forged, or two nodes use one subnet; compare `flannelctl leases` with subnet.env there"
            }
            Reason::NotOurs => {
                "its destination is not in this node's subnet: the sender uses an outdated lease; check `flannelctl leases` there"
            }
            Reason::Martian => {
                "such an address is invalid between nodes, or it is a broadcast; check which program sends it there"
            }
            Reason::TtlExceeded => "its TTL has expired; check the routes of both nodes for a loop",
            Reason::BadVni => {
                "it belongs to another VXLAN network; compare VNI and Port in the network configuration of both"
            }
            Reason::WrongMac => {
                "it is for another VTEP: the sender uses an outdated MAC of this node; compare VtepMAC in this node's lease with `bridge fdb` there"
            }
            Reason::NotIp => {
                "only IPv4 and IPv6 are accepted: the sender may use ARP for an address that the lease provides; check its neighbour table"
            }
            Reason::Ecn => "a router marked it for congestion, but its sender does not support ECN",
            Reason::NoSession => {
                "it belongs to no session: this node or the sender restarted, and the next handshake fixes it; if it persists, compare the public keys in `flannelctl leases` on both"
            }
            Reason::BadTag => "its authentication fails: it was damaged in transit or is forged",
            Reason::Replayed => {
                "it was received before or is too old: the network or an attacker repeats or delays packets"
            }
            Reason::BadHandshake => {
                "its sender has an outdated public key of this node, or is not in the cluster; also compare the preshared keys"
            }
            Reason::HandshakeLimit => {
                "its sender exceeds the limit of handshakes per source while there are many: find the sender at that address"
            }
            Reason::HandshakeFlood => {
                "there are more handshakes than this node can answer: check who sends to this port"
            }
            Reason::Loop => {
                "it is to the tunnel's port of a node and would be sent into the tunnel again: a pod of the sending node sends tunnel packets itself; see --encap-bar-pods there"
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
