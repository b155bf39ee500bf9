//! A node's request for a lease, and the data that identifies a former lease of the node's host.

use crate::lease::{LeaseAttrs, NodeId};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Subnets};

/// A node's request for a lease.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Identity of the node. Key-value stores set the identity's `rank` and `lease`.
    pub node: NodeId,
    /// Addresses to publish in the lease.
    pub public: Addresses,
    /// Data that identifies a former lease of the host. A store that assigns the subnets itself ignores this data.
    pub host: HostEvidence,
}

/// Queries about this host that depend on a lease or an address.
pub trait HostQueries: fmt::Debug + Send + Sync {
    /// Returns whether a lease belongs to this host, according to the host's identity in the backend (a MAC, a key).
    fn is_own(&self, attrs: &LeaseAttrs) -> bool;

    /// Returns whether the route to an address uses the underlay.
    fn via_underlay(&self, to: IpAddr) -> bool;
}

/// Data that distinguishes a host's own lease from the leases of other nodes, and the subnets that the host must not choose.
///
/// Key-value stores need the data about the host, because the nodes themselves decide which key belongs to which node. The default
/// describes a host without a former lease.
#[derive(Clone, Debug, Default)]
pub struct HostEvidence {
    /// The subnet in this host's subnet.env.
    pub previous: Option<Subnets>,
    /// Bridges of this host from which flanneld removed the gateway address of the previous subnet, because the store assigned another subnet.
    pub released: Vec<String>,
    /// MACs of the flannel devices on this host, lower-case with colons.
    pub macs: Vec<String>,
    /// Checks whether a lease belongs to this host, and whether the route to an address uses the underlay; `None` without access to the host.
    pub queries: Option<Arc<dyn HostQueries>>,
    /// Whether the operator set the underlay or the public address by a flag or an environment variable.
    pub named: bool,
    /// Whether the route to the store uses the underlay (or the store is on this host).
    pub store_via_underlay: bool,
    /// Whether other hosts answer on the link of the address to publish, and none answers at this address. So a lease with this address has no
    /// holder any more, or its holder claims an address of another host.
    pub alone_at_address: bool,
    /// Networks of the underlay interface, which no subnet may overlap.
    pub underlay: Vec<IpNet>,
    /// Whether several nodes may publish the same address (wireguard behind NAT).
    pub shared_address: bool,
    /// The chosen underlay interface; `None` for a tool that chooses no interface.
    pub choice: Option<Choice>,
}

/// The underlay interface that flanneld chose, and the other interfaces of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the interface.
    pub interface: String,
    /// Reason for the choice of the interface.
    pub why: String,
    /// Text with the interfaces of the host, one per line. If another interface is a better choice, the text shows the flag that selects that
    /// interface.
    pub interfaces: String,
}
