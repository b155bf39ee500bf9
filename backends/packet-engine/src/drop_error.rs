//! Reasons for dropping packets.

/// Defines the reasons and their labels in one place.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Why the engine dropped a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DropError {
            $($(#[$doc])* $name,)*
        }

        impl DropError {
            /// Each at its discriminant, which is its index in arrays of counters.
            pub const ALL: [DropError; [$($label),*].len()] = [$(DropError::$name),*];

            /// The value of the metric label `reason`.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(DropError::$name => $label,)*
                }
            }
        }
    };
}

reasons! {
    /// Too short for its headers.
    Short = "short",
    /// Longer than its receive buffer.
    Truncated = "truncated",
    /// Invalid version, header length or packet length.
    Malformed = "malformed",
    /// An address that is invalid between nodes.
    Martian = "martian",
    /// Not from a peer's address.
    UnknownPeer = "unknown_peer",
    /// The inner source is not in the sending peer's subnets.
    Spoofed = "spoofed",
    /// The inner destination is not in this node's subnets.
    NotOurs = "not_ours",
    /// The destination is in no peer's subnet.
    NoRoute = "no_route",
    TtlExceeded = "ttl_exceeded",
    /// Larger than the tunnel's MTU.
    TooBig = "too_big",
    /// From another VXLAN network.
    BadVni = "bad_vni",
    /// Invalid encapsulation header.
    BadHeader = "bad_header",
    /// A frame of another protocol.
    NotIp = "not_ip",
    /// Not the MAC of this node's VTEP.
    WrongMac = "wrong_mac",
    /// The packet would enter the tunnel again.
    Loop = "loop",
    /// An IPv6 packet for a peer that does not accept IPv6.
    NoV6Peer = "no_v6_peer",
    /// A congestion mark, and the inner sender does not support ECN.
    Ecn = "ecn",
    /// The peer has no session with this node yet, or the datagram belongs to none.
    NoSession = "no_session",
    /// The peer's endpoint is unknown, or no socket has its address family.
    NoEndpoint = "no_endpoint",
    /// Damaged or forged.
    BadTag = "bad_tag",
    /// Received before, or too old.
    Replayed = "replayed",
    /// For another key than this node's, or not authentic.
    BadHandshake = "bad_handshake",
    /// More handshake messages than this node can handle.
    HandshakeFlood = "handshake_flood",
    /// The virtio header does not match the packet.
    BadOffload = "bad_offload",
    /// Refused by the socket.
    SendFailed = "send_failed",
    /// Refused by the TUN device.
    WriteFailed = "write_failed",
    /// The source exceeds its rate limit for handshakes.
    HandshakeLimit = "handshake_limit",
    /// A broken rule of this program.
    Internal = "internal",
}

impl DropError {
    /// The likely cause and the remedy, for the log line about received packets.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            DropError::Short
            | DropError::Truncated
            | DropError::Malformed
            | DropError::BadHeader => {
                "the packet's headers or lengths are invalid: the packet comes from another program or was damaged in transit. Find the host that sends to this port"
            }
            DropError::UnknownPeer => {
                "no lease names this public address: the sender is unknown, or is a node that sends from an address other than its announced address. Check --iface and --public-ip on that node"
            }
            DropError::Spoofed => {
                "the packet's source is not in the sending node's subnet: the packet is forged, or two nodes use one subnet. Compare `flannelctl leases` with subnet.env on the sending node"
            }
            DropError::NotOurs => {
                "the packet's destination is not in this node's subnet: the sender uses an outdated lease; check `flannelctl leases` on the sender"
            }
            DropError::Martian => {
                "the packet's source or destination is invalid between nodes, or its destination is a broadcast address; check which program sends such packets on the sending node"
            }
            DropError::TtlExceeded => {
                "the packet's TTL has expired; check the routes of both nodes for a loop"
            }
            DropError::BadVni => {
                "the packet belongs to another VXLAN network; compare VNI and Port in the network configuration of both nodes"
            }
            DropError::WrongMac => {
                "the packet is for another VTEP: the sender uses an outdated MAC of this node. Compare VtepMAC in this node's lease with `bridge fdb` on the sender"
            }
            DropError::NotIp => {
                "flanneld accepts only IPv4 and IPv6: the sender may use ARP for an address whose MAC the lease provides; check the sender's neighbour table"
            }
            DropError::Ecn => {
                "a router marked the packet for congestion, but the packet's sender does not support ECN"
            }
            DropError::NoSession => {
                "the packet belongs to no session: this node or the sender restarted, and the next handshake fixes the fault. If the fault persists, compare the public keys in `flannelctl leases` on both nodes"
            }
            DropError::BadTag => {
                "the packet's authentication fails: the packet was damaged in transit or is forged"
            }
            DropError::Replayed => {
                "this node received the packet before, or the packet is too old: the network or an attacker repeats or delays packets"
            }
            DropError::BadHandshake => {
                "the packet's sender has an outdated public key of this node, or is not in the cluster; also compare the preshared keys"
            }
            DropError::HandshakeLimit => {
                "during a flood of handshakes, the sender exceeds the limit of handshakes per source: find the sender at that address"
            }
            DropError::HandshakeFlood => {
                "more handshakes arrive than this node can process: find the host that sends to this port"
            }
            DropError::Loop => {
                "the packet's destination is the tunnel's port on a node, so flanneld would send the packet into the tunnel again. A pod of the sending node sends tunnel packets itself; see --encap-bar-pods for that node"
            }
            DropError::Internal => {
                "flanneld broke a rule of its own; please report this line as a bug"
            }
            DropError::NoEndpoint
            | DropError::NoRoute
            | DropError::TooBig
            | DropError::NoV6Peer
            | DropError::BadOffload
            | DropError::SendFailed
            | DropError::WriteFailed => "see docs/monitoring.md",
        }
    }
}
