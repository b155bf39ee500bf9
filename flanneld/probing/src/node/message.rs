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

/// Number of probes in a whole round, without pings: a short and a long probe over the overlay, and a probe over the underlay.
pub(super) const ROUND_COST: u32 = 3;

/// The time on two clocks: a monotonic clock and the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since an arbitrary fixed point.
    pub at: Duration,
    /// Wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
}

/// Identifying numbers, subnets, addresses and MTUs of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// The number that identifies the node in probes over IPv4.
    pub who_v4: Option<u64>,
    /// The number that identifies the node in probes over IPv6.
    pub who_v6: Option<u64>,
    /// The node's IPv4 subnet.
    pub subnet_v4: Option<IpNet>,
    /// The node's IPv6 subnet.
    pub subnet_v6: Option<IpNet>,
    /// The node's current IPv4 address in the overlay, if any.
    pub overlay_v4: Option<IpAddr>,
    /// The node's current IPv6 address in the overlay, if any.
    pub overlay_v6: Option<IpAddr>,
    /// Whether each node has an overlay device with the first address of its subnet. Nodes without overlay devices
    /// probe the pods' bridge of a peer, if the bridge exists.
    pub device: bool,
    /// Whether the node may send probes over the underlay, unencrypted.
    pub clear: bool,
    /// The MTU of the overlay for IPv4, in bytes.
    pub mtu_v4: u16,
    /// The MTU of the overlay for IPv6, in bytes.
    pub mtu_v6: u16,
}

impl LocalNode {
    /// Returns the number that identifies the node on the wire in an address family.
    pub fn who(&self, family: Family) -> Option<u64> {
        family.pick(self.who_v4, self.who_v6)
    }

    /// Returns the node's current overlay address in an address family, if any.
    pub fn overlay(&self, family: Family) -> Option<IpAddr> {
        family.pick(self.overlay_v4, self.overlay_v6)
    }

    /// Returns the overlay's MTU for an address family, in bytes.
    pub fn mtu(&self, family: Family) -> u16 {
        family.pick(self.mtu_v4, self.mtu_v6)
    }
}

/// A packet that the caller of [`super::Node::take_sends`] has to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// A datagram from and to the probe port.
    Datagram {
        /// The overlay or the underlay, which selects the socket.
        path: Path,
        /// The address of the peer on the probe's path.
        to: IpAddr,
        /// The UDP payload: a message of [`crate::wire`].
        bytes: Vec<u8>,
    },
    /// A datagram from the probe port to the address that sent a pod probe.
    ToPod {
        /// The address that sent the pod probe.
        to: IpAddr,
        /// The destination UDP port of the pod call.
        port: u16,
        /// The UDP payload: a message of [`crate::wire`].
        bytes: Vec<u8>,
    },
    /// A ping that routers must not fragment.
    Ping {
        /// The path, which selects the socket.
        path: Path,
        /// The address of the peer on the probe's path.
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
    /// The source address, which another host may have forged.
    pub from: IpAddr,
    /// Arrival time of the datagram, by the kernel's timestamp.
    pub at: Duration,
    /// The whole UDP payload.
    pub bytes: &'a [u8],
}

/// A change of the state of a peer in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The peer, with its lease at the time of the change.
    pub target: Target,
    /// The state of the peer before the change.
    pub was: State,
    /// The state of the peer after the change.
    pub is: State,
}

/// Notice that a fault of all peers in a family began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonNotice {
    /// The family.
    pub family: Family,
    /// The state of the probed peers; [`State::Well`] once peers reply again.
    pub state: State,
    /// Number of probed peers, whose verdict applies to the other peers.
    pub asked: usize,
    /// Number of peers in the address family.
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
    /// Returns the length of the probe's packet in bytes if the overlay has the MTU `mtu`; 0 for the shortest probe.
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

    /// Returns whether this kind of probe is a ping.
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
    /// The number of the round that contains the probe.
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
    /// All kinds of probes in a session, in the order of the indexes that `place` returns.
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
