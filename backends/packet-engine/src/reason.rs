//! Why packets are dropped.

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
