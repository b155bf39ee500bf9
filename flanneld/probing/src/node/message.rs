//! What goes into a node and comes out of it, and the questions it keeps in mind.

use crate::target::{Path, Target};
use ipnet::IpNet;
use std::net::IpAddr;
use std::time::Duration;
use types::Family;
use types::reachability::State;

/// How long an answer is waited for.
pub const WAIT: Duration = Duration::from_secs(1);
/// How long a late answer still shows that nothing was lost.
pub(super) const LATE: Duration = Duration::from_secs(3);

/// Questions of a whole round, pings not counted: small and long through the overlay network, one beside it.
pub(super) const COST: u32 = 3;

/// The time: a clock that only goes forward, and the wall's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since any point.
    pub at: Duration,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// What a node knows of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// Its number as a peer of IPv4.
    pub who_v4: Option<u64>,
    /// Its number as a peer of IPv6.
    pub who_v6: Option<u64>,
    /// Its IPv4 address in the overlay network, if it has one now.
    pub overlay_v4: Option<IpAddr>,
    /// Its IPv6 address there.
    pub overlay_v6: Option<IpAddr>,
    /// Whether each node has an overlay device with the first address of its subnet. Without one the pods' bridge is asked, once it is there.
    pub device: bool,
    /// Whether questions may be sent beside the overlay network, in the clear.
    pub clear: bool,
    /// The MTU of the overlay network, for each family.
    pub mtu_v4: u16,
    /// The same for IPv6.
    pub mtu_v6: u16,
}

impl LocalNode {
    /// Its number in a family.
    pub fn who(&self, family: Family) -> Option<u64> {
        family.pick(self.who_v4, self.who_v6)
    }

    /// Its address in the overlay network.
    pub fn overlay(&self, family: Family) -> Option<IpAddr> {
        family.pick(self.overlay_v4, self.overlay_v6)
    }

    /// The MTU of a family.
    pub fn mtu(&self, family: Family) -> u16 {
        family.pick(self.mtu_v4, self.mtu_v6)
    }
}

/// Something to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// A datagram from and to the probe port.
    Datagram {
        /// The socket.
        way: Path,
        /// To whom.
        to: IpAddr,
        /// What.
        bytes: Vec<u8>,
    },
    /// A ping, not to be fragmented.
    Ping {
        /// The socket.
        way: Path,
        /// To whom.
        to: IpAddr,
        /// Stands in the ping, and in its answer.
        nonce: u64,
        /// The length of the whole packet.
        length: u16,
    },
}

/// A datagram that came in.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// By which socket.
    pub way: Path,
    /// From whom.
    pub from: IpAddr,
    /// When it came, as the kernel says.
    pub at: Duration,
    /// What.
    pub bytes: &'a [u8],
}

/// A verdict that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// On whom.
    pub target: Target,
    /// What it was.
    pub was: State,
    /// What it is.
    pub is: State,
}

/// What a question was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Full,
    Small,
    Ping,
    BridgePing,
    FullPing,
    Underlay,
    UnderlayPing,
    Size(u16),
    SizePing(u16),
    Session(u64, Asked),
    Row,
}

impl What {
    /// Whether it is asked by ping.
    pub(super) fn is_ping(self) -> bool {
        match self {
            What::Ping
            | What::BridgePing
            | What::FullPing
            | What::UnderlayPing
            | What::SizePing(_) => true,
            What::Session(_, kind) => kind.is_ping(),
            What::Full | What::Small | What::Underlay | What::Size(_) | What::Row => false,
        }
    }
}

/// A question whose answer is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub key: IpNet,
    pub what: What,
    pub way: Path,
    pub to: IpAddr,
    pub at: Duration,
    /// The round of which it is part.
    pub round: u64,
}

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Overlay { full: bool },
    Underlay,
    OverlayPing { full: bool },
    UnderlayPing,
}

impl Asked {
    /// All kinds, each at its place.
    pub(super) const ALL: [Asked; 6] = [
        Asked::Overlay { full: false },
        Asked::Overlay { full: true },
        Asked::Underlay,
        Asked::OverlayPing { full: false },
        Asked::OverlayPing { full: true },
        Asked::UnderlayPing,
    ];

    pub(super) fn is_ping(self) -> bool {
        matches!(self, Asked::OverlayPing { .. } | Asked::UnderlayPing)
    }

    pub(super) fn is_full(self) -> bool {
        matches!(
            self,
            Asked::Overlay { full: true } | Asked::OverlayPing { full: true }
        )
    }

    pub(super) fn is_overlay(self) -> bool {
        matches!(self, Asked::Overlay { .. } | Asked::OverlayPing { .. })
    }

    pub(super) fn place(self) -> usize {
        Self::ALL.iter().position(|kind| *kind == self).unwrap_or(0)
    }
}
