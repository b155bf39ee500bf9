//! What the checks are about.

use std::sync::Arc;
use subnet_lease::Subnets;

/// Whether packets to an address leave by the underlay.
pub type Leads = Arc<dyn Fn(std::net::IpAddr) -> bool + Send + Sync>;

/// What is served, and so what has to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The cluster's networks.
    pub networks: Subnets,
    /// The UDP port on which encapsulated packets come in; none where there is no tunnel.
    pub port: Option<u16>,
    /// This node's own subnets.
    pub own: Subnets,
    /// Traffic rules are kept by nftables instead of iptables.
    pub nftables: bool,
    /// There are rules that accept forwarded packets.
    pub forward: bool,
    /// `--set-sysctls`.
    pub set: bool,
}
