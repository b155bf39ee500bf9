//! The configuration of an engine.

use crate::features::Features;
use crate::framing::Framing;
use types::Addresses;

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The name of the TUN device, at most 15 bytes.
    pub device: String,
    /// The format of datagrams between nodes, which must be the same on all nodes.
    pub framing: Framing,
    /// The UDP port of this node and of its peers.
    pub port: u16,
    /// Whether flows use different source ports. If flows do not use different source ports, the source port is `port`.
    pub spread: bool,
    /// The method by which the engine reads and sends packets.
    pub features: Features,
    /// The tunnel's own addresses, which are the sources of ICMP errors to pods.
    pub sources: Option<Addresses>,
}
