//! A node's request for a lease, and the data that identifies a former lease of its host.

use crate::lease::{LeaseAttrs, NodeId};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Subnets};

#[derive(Clone, Debug)]
pub struct Claim {
    /// Key-value stores set its `rank` and `lease`.
    pub node: NodeId,
    /// Those to publish in the lease.
    pub public: Addresses,
    /// A store that assigns the subnets itself ignores it.
    pub host: HostEvidence,
}

/// Queries about this host that depend on a lease or an address.
pub trait HostQueries: fmt::Debug + Send + Sync {
    /// By the host's identity in the backend (a MAC, a key).
    fn is_own(&self, attrs: &LeaseAttrs) -> bool;

    fn via_underlay(&self, to: IpAddr) -> bool;
}

/// What distinguishes a host's own lease from those of other nodes, and the subnets that the host must not choose.
///
/// Key-value stores need it, because the nodes themselves decide which key belongs to which node. The default describes a host without a former
/// lease.
#[derive(Clone, Debug, Default)]
pub struct HostEvidence {
    /// The subnet in this host's subnet.env.
    pub previous: Option<Subnets>,
    /// Bridges from which flanneld removed the gateway address of the previous subnet, because the store assigned another subnet.
    pub released: Vec<String>,
    /// Those of the flannel devices on this host, lower-case with colons.
    pub macs: Vec<String>,
    /// `None` without access to the host.
    pub queries: Option<Arc<dyn HostQueries>>,
    /// Whether the operator set the underlay or the public address by a flag or an environment variable.
    pub named: bool,
    /// Also true if the store is on this host.
    pub store_via_underlay: bool,
    /// Other hosts answer on the link of the address to publish, and none answers at this address. So a lease with this address has no holder any
    /// more, or its holder claims an address of another host.
    pub alone_at_address: bool,
    /// Networks of the underlay interface, which no subnet may overlap.
    pub underlay: Vec<IpNet>,
    /// Several nodes may publish the same address (wireguard behind NAT).
    pub shared_address: bool,
    /// The underlay interface; `None` for a tool that chooses none.
    pub choice: Option<Choice>,
}

/// The underlay interface that flanneld chose, and the other interfaces of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub interface: String,
    pub why: String,
    /// The interfaces of the host as text, one per line. If another one is a better choice, the text shows the flag that selects it.
    pub interfaces: String,
}
