//! Inputs and outputs of the state machine that probes peers, and the kinds of probes.

use crate::target::{Path, Target};
use ipnet::IpNet;
use std::net::IpAddr;
use std::time::Duration;
use types::Family;
use types::reachability::State;

/// Time for which a round of probes waits for replies.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum delay of a late reply that still proves that the path lost no packet.
pub(super) const LATE_TIMEOUT: Duration = Duration::from_secs(3);

/// Number of probes in a whole round, without pings: a short and a long probe over the overlay, and one over the
/// underlay.
pub(super) const ROUND_COST: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since an arbitrary fixed point.
    pub at: Duration,
    /// In milliseconds since 1970.
    pub wall_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// The number of the node in probes over IPv4.
    pub who_v4: Option<u64>,
    /// The number of the node in probes over IPv6.
    pub who_v6: Option<u64>,
    pub subnet_v4: Option<IpNet>,
    pub subnet_v6: Option<IpNet>,
    /// `None` while the node has no IPv4 address in the overlay.
    pub overlay_v4: Option<IpAddr>,
    /// `None` while the node has no IPv6 address in the overlay.
    pub overlay_v6: Option<IpAddr>,
    /// Whether each node has an overlay device with the first address of its subnet. Nodes without such devices probe
    /// the pods' bridge of a peer, if the bridge exists.
    pub device: bool,
    /// Whether the node may send probes over the underlay, unencrypted.
    pub clear: bool,
    /// The MTU of the overlay for IPv4, in bytes.
    pub mtu_v4: u16,
    /// The MTU of the overlay for IPv6, in bytes.
    pub mtu_v6: u16,
}

impl LocalNode {
    /// The number of the node on the wire in an address family.
    pub fn who(&self, family: Family) -> Option<u64> {
        family.pick(self.who_v4, self.who_v6)
    }

    pub fn overlay(&self, family: Family) -> Option<IpAddr> {
        family.pick(self.overlay_v4, self.overlay_v6)
    }

    /// In bytes.
    pub fn mtu(&self, family: Family) -> u16 {
        family.pick(self.mtu_v4, self.mtu_v6)
    }
}

/// A packet that the caller of [`super::Node::take_sends`] has to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// A datagram from and to the probe port.
    Datagram {
        /// Selects the socket.
        path: Path,
        /// The address of the peer on `path`.
        to: IpAddr,
        /// The UDP payload: a message of [`crate::wire`].
        bytes: Vec<u8>,
    },
    /// A datagram from the probe port to the address that sent a pod probe.
    ToPod {
        to: IpAddr,
        /// The destination UDP port of the pod call.
        port: u16,
        /// The UDP payload: a message of [`crate::wire`].
        bytes: Vec<u8>,
    },
    /// A ping that routers must not fragment.
    Ping {
        /// Selects the socket.
        path: Path,
        /// The address of the peer on `path`.
        to: IpAddr,
        /// A random number that the reply repeats.
        nonce: u64,
        /// The length of the whole packet in bytes.
        length: u16,
    },
}

/// An unparsed datagram that arrived on the probe port.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The path of the socket that received the datagram.
    pub path: Path,
    /// Another host may have forged it.
    pub from: IpAddr,
    /// By the kernel's timestamp.
    pub at: Duration,
    /// The whole UDP payload.
    pub bytes: &'a [u8],
}

/// A change of the state of a peer in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// With its lease at the time of the change.
    pub target: Target,
    pub was: State,
    pub is: State,
}

/// Notice that a fault of all peers in a family began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonNotice {
    pub family: Family,
    /// [`State::Well`] once peers reply again.
    pub state: State,
    /// Number of probed peers, whose verdict applies to the other peers.
    pub asked: usize,
    /// Number of peers in the family.
    pub peers: usize,
}

/// The kind of a probe that this node sends to a peer.
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
    /// In bytes, if the overlay has the MTU `mtu`; 0 for the shortest probe.
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

/// A probe that awaits its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub key: IpNet,
    pub what: What,
    pub path: Path,
    pub to: IpAddr,
    pub at: Duration,
    pub round: u64,
}

/// A kind of probe in an on-demand session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Overlay { full: bool },
    Underlay,
    OverlayPing { full: bool },
    UnderlayPing,
}

impl Asked {
    /// In the order of the indexes that `place` returns.
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
        matches!(self, Asked::Overlay { full: true } | Asked::OverlayPing { full: true })
    }

    pub(super) fn is_overlay(self) -> bool {
        matches!(self, Asked::Overlay { .. } | Asked::OverlayPing { .. })
    }

    pub(super) fn place(self) -> usize {
        Self::ALL.iter().position(|kind| *kind == self).unwrap_or(0)
    }
}
