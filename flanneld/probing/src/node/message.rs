//! Input and output of a node, and its kinds of questions.

use crate::target::{Path, Target};
use ipnet::IpNet;
use std::net::IpAddr;
use std::time::Duration;
use types::Family;
use types::reachability::State;

/// How long a round waits for answers.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a late answer still proves that nothing was lost.
pub(super) const LATE_TIMEOUT: Duration = Duration::from_secs(3);

/// Questions of a whole round without pings: a short and a long one over the overlay, one over the underlay.
pub(super) const ROUND_COST: u32 = 3;

/// The time on two clocks: a monotonic one and the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, since any fixed point.
    pub at: Duration,
    /// Wall clock, in milliseconds since 1970.
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
    /// Its IPv6 address in the overlay network, if it has one now.
    pub overlay_v6: Option<IpAddr>,
    /// Whether each node has an overlay device with the first address of its subnet. Without one the pods' bridge is asked, once it is there.
    pub device: bool,
    /// Whether questions may be sent over the underlay, in the clear.
    pub clear: bool,
    /// The MTU of the overlay network for IPv4, in bytes.
    pub mtu_v4: u16,
    /// The MTU of the overlay network for IPv6, in bytes.
    pub mtu_v6: u16,
}

impl LocalNode {
    /// Returns its number in a family.
    pub fn who(&self, family: Family) -> Option<u64> {
        family.pick(self.who_v4, self.who_v6)
    }

    /// Returns its address in the overlay network, if it has one now.
    pub fn overlay(&self, family: Family) -> Option<IpAddr> {
        family.pick(self.overlay_v4, self.overlay_v6)
    }

    /// Returns the MTU of a family in bytes.
    pub fn mtu(&self, family: Family) -> u16 {
        family.pick(self.mtu_v4, self.mtu_v6)
    }
}

/// A packet that the caller of [`super::Node::take_sends`] has to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// A datagram from and to the probe port.
    Datagram {
        /// The path, which selects the socket.
        path: Path,
        /// The address of the peer on that path.
        to: IpAddr,
        /// The UDP payload: a message of [`crate::wire`].
        bytes: Vec<u8>,
    },
    /// A datagram from the probe port to a pod that asked.
    ToPod {
        /// The address of the pod.
        to: IpAddr,
        /// Its UDP port.
        port: u16,
        /// The UDP payload: a message of [`crate::wire`].
        bytes: Vec<u8>,
    },
    /// A ping, not to be fragmented.
    Ping {
        /// The path, which selects the socket.
        path: Path,
        /// The address of the peer on that path.
        to: IpAddr,
        /// A number that the answer repeats.
        nonce: u64,
        /// The length of the whole packet in bytes.
        length: u16,
    },
}

/// A datagram that arrived on the probe port, not parsed yet.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The path of the socket that received it.
    pub path: Path,
    /// The source address, which anybody may have forged.
    pub from: IpAddr,
    /// When it arrived, by the kernel's timestamp.
    pub at: Duration,
    /// The UDP payload, as long as it arrived.
    pub bytes: &'a [u8],
}

/// A change of the state of a peer in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The peer, as its lease had it at that time.
    pub target: Target,
    /// The state that was shown until then.
    pub was: State,
    /// The state that is shown from then on.
    pub is: State,
}

/// All peers of a family fail alike, or do not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonNotice {
    /// The family.
    pub family: Family,
    /// The state of those that were asked; [`State::Well`] once peers answer again.
    pub state: State,
    /// How many were asked; the rest is judged by them.
    pub asked: usize,
    /// How many peers there are.
    pub peers: usize,
}

/// A question to one peer.
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
    /// The length of its packet where the MTU is `mtu`; 0 stands for the shortest.
    pub(super) fn length(self, mtu: u16) -> u16 {
        match self {
            What::Full | What::FullPing => mtu,
            What::Session(_, kind) if kind.is_full() => mtu,
            What::Size(length) | What::SizePing(length) => length,
            What::Small
            | What::Ping
            | What::BridgePing
            | What::Underlay
            | What::UnderlayPing
            | What::Session(..)
            | What::Row => 0,
        }
    }

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
    pub path: Path,
    pub to: IpAddr,
    pub at: Duration,
    /// The round of which it is part.
    pub round: u64,
}

/// A kind of question of a session.
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
