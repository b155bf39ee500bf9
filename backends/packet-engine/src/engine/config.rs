//! The configuration of an engine.

use crate::features::Features;
use crate::packet::framing::Framing;
use types::Addresses;

#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The name of the TUN device, at most 15 bytes.
    pub device: String,
    /// Must be the same on all nodes.
    pub framing: Framing,
    /// The UDP port of this node and of its peers.
    pub port: u16,
    /// Whether flows use different source ports. Otherwise the source port is `port`.
    pub spread: bool,
    pub features: Features,
    /// The sources of ICMP errors to pods.
    pub sources: Option<Addresses>,
}
