//! Policies of IPsec (xfrm): which packets are sent through a tunnel of ESP, and which must not leave without one.

use ipnet::IpNet;
use std::net::IpAddr;

/// When a policy is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// A packet that arrives for this host.
    In,
    /// A packet that leaves.
    Out,
    /// A packet that is forwarded.
    Forward,
}

/// What makes two policies the same one: the kernel keeps one for each. (Marks, ports and protocols are not ours.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    /// The direction.
    pub direction: Direction,
    /// The packets' source.
    pub from: IpNet,
    /// Their destination.
    pub to: IpNet,
}

/// What a policy does with its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They go, or came, through this tunnel of ESP.
    Tunnel {
        /// The tunnel's source.
        from: IpAddr,
        /// Its destination.
        to: IpAddr,
        /// What joins the policy to its security associations.
        reqid: u32,
    },
    /// They are dropped.
    Block,
    /// They pass as they are.
    Pass,
}

/// A policy. Of several that select a packet, the one with the smallest number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What it does.
    pub action: Action,
    /// Its priority.
    pub priority: u32,
}
