//! What an engine is made of.

use crate::features::Features;
use crate::framing::Framing;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What an engine is made of.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The TUN device's name.
    pub device: String,
    /// What stands before packets on the wire.
    pub framing: Framing,
    /// The UDP port, here and at peers.
    pub port: u16,
    /// Whether the source port tells flows apart; otherwise it is `port`.
    pub spread: bool,
    /// How packets are moved.
    pub features: Features,
    /// The tunnel's own addresses, from which pods are told of errors.
    pub sources: (Option<Ipv4Addr>, Option<Ipv6Addr>),
}
