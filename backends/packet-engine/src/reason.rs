//! Why packets are dropped.

/// Defines the reasons and their labels in one place.
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

            /// The value of the label `reason` in metrics.
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
    /// The version, header length or packet length is wrong.
    Malformed = "malformed",
    /// An address that is invalid between nodes.
    Martian = "martian",
    /// The datagram is not from a peer's address.
    UnknownPeer = "unknown_peer",
    /// The inner source is not in the sending peer's subnets.
    Spoofed = "spoofed",
    /// The inner destination is not in our subnets.
    NotOurs = "not_ours",
    /// The destination is in no peer's subnet.
    NoRoute = "no_route",
    /// The TTL has expired.
    TtlExceeded = "ttl_exceeded",
    /// Larger than the tunnel's MTU.
    TooBig = "too_big",
    /// A packet of another VXLAN network.
    BadVni = "bad_vni",
    /// The encapsulation header is wrong.
    BadHeader = "bad_header",
    /// A frame with a protocol other than IP.
    NotIp = "not_ip",
    /// A frame to a MAC other than our VTEP's.
    WrongMac = "wrong_mac",
    /// The packet would enter the tunnel again.
    Loop = "loop",
    /// IPv6 to a peer that does not accept it.
    NoV6Peer = "no_v6_peer",
    /// A congestion mark that the inner sender does not support.
    Ecn = "ecn",
    /// No session: none yet with that peer, or the datagram belongs to none.
    NoSession = "no_session",
    /// Where the peer is is unknown, or no socket has the family of that address.
    NoEndpoint = "no_endpoint",
    /// The datagram is not what the peer sealed.
    BadTag = "bad_tag",
    /// The datagram was received before, or is too old.
    Replayed = "replayed",
    /// A handshake message that is not for this node or not from who it says.
    BadHandshake = "bad_handshake",
    /// More handshake messages than can be handled.
    HandshakeFlood = "handshake_flood",
    /// The virtio header does not match the packet.
    BadOffload = "bad_offload",
    /// The socket refused the packet.
    SendFailed = "send_failed",
    /// The TUN device refused the packet.
    WriteFailed = "write_failed",
    /// More handshakes from one source than it may have.
    HandshakeLimit = "handshake_limit",
}

impl Reason {
    /// The index in [`Reason::ALL`], for arrays of counters.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// For received packets: the likely cause and the remedy, for the log.
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
                "it belongs to no session: this node or the sender restarted, and the next handshake mends it; if it lasts, compare the public keys in `flannelctl leases` on both"
            }
            Reason::BadTag => "its authentication fails: it was damaged in transit or is forged",
            Reason::Replayed => {
                "it was received before or is too old: the network repeats or delays packets, or somebody does"
            }
            Reason::BadHandshake => {
                "its sender has another public key of this node than the present one, or is none of the cluster's; compare the preshared keys too"
            }
            Reason::HandshakeLimit => {
                "its sender begins more handshakes than a source may while there are many: check who sends to this port from that address"
            }
            Reason::HandshakeFlood => {
                "there are more handshakes than this node can answer: check who sends to this port"
            }
            Reason::Loop => {
                "it is to the tunnel's port of a node and would be sent into the tunnel again: a pod of the sending node builds a tunnel of its own; see --encap-bar-pods there"
            }
            Reason::NoEndpoint
            | Reason::NoRoute
            | Reason::TooBig
            | Reason::NoV6Peer
            | Reason::BadOffload
            | Reason::SendFailed
            | Reason::WriteFailed => "see docs/operations.md",
        }
    }
}
