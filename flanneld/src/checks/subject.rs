//! The subject of the checks.

use std::sync::Arc;
use subnet_lease::Subnets;

/// Whether packets to an address leave through the underlay.
pub type Leads = Arc<dyn Fn(std::net::IpAddr) -> bool + Send + Sync>;

/// What this daemon serves and which features have to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The cluster's networks.
    pub networks: Subnets,
    /// The UDP port for encapsulated packets; `None` without a tunnel.
    pub port: Option<u16>,
    /// This node's own subnets.
    pub own: Subnets,
    /// Whether the traffic rules are in nftables rather than iptables.
    pub nftables: bool,
    /// Whether there are rules that accept forwarded packets.
    pub forward: bool,
    /// `--set-sysctls`.
    pub set: bool,
}
