//! A node's request for a lease, and the facts about its host that help to find the lease.

use crate::lease::{LeaseAttrs, NodeId};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Subnets};

/// A node that requests its lease.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Identity of the node. A store that ranks the instances of a node fills in `rank` and `lease`.
    pub node: NodeId,
    /// Addresses to publish in the lease.
    pub public: Addresses,
    /// Facts about the host. A store that assigns the subnets itself does not use these facts.
    pub host: HostEvidence,
}

/// Queries about this host that depend on a lease or an address.
pub trait HostQueries: fmt::Debug + Send + Sync {
    /// Returns whether a lease belongs to this host, judged by the host's identity in the backend (a MAC, a key).
    fn is_own(&self, attrs: &LeaseAttrs) -> bool;

    /// Returns whether the route to an address uses the underlay.
    fn via_underlay(&self, to: IpAddr) -> bool;
}

/// Facts that distinguish a host's own lease from the leases of other nodes, and the subnets that the host must not choose.
///
/// Key-value stores need these facts, because their nodes decide themselves which key belongs to which node. The default describes a host that
/// knows of no former lease.
#[derive(Clone, Debug, Default)]
pub struct HostEvidence {
    /// The subnet in this host's subnet.env.
    pub previous: Option<Subnets>,
    /// Bridges of this host from which flanneld removed the gateway of the previous subnet, because the store assigned another subnet.
    pub released: Vec<String>,
    /// MACs of the flannel devices on this host, lower-case with colons.
    pub macs: Vec<String>,
    /// Queries whether a lease belongs to this host and which addresses the underlay reaches; `None` if the answers are unknown.
    pub queries: Option<Arc<dyn HostQueries>>,
    /// Whether a flag or its environment variable set the underlay or the public address.
    pub named: bool,
    /// Whether the route to the store uses the underlay (or the store is on this host).
    pub store_via_underlay: bool,
    /// Networks of the underlay interface, which no subnet may overlap.
    pub underlay: Vec<IpNet>,
    /// Whether several nodes may publish one address (wireguard behind NAT).
    pub shared_address: bool,
    /// The chosen interface; `None` for a tool that chooses no interface.
    pub choice: Option<Choice>,
}

/// The interface that a host chose, and its alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the interface.
    pub interface: String,
    /// Reason for the choice.
    pub why: String,
    /// Text with the interfaces of the host, one per line. If another interface is a better choice, the text shows the flag that selects that
    /// interface.
    pub interfaces: String,
}
