//! Who asks for a lease, and what the host knows that helps to find it.

use crate::lease::{LeaseAttrs, NodeId};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Subnets};

/// A node that asks for its lease.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The node. A store that ranks the instances of a node fills in `rank` and `lease`.
    pub node: NodeId,
    /// Addresses to publish in the lease.
    pub public: Addresses,
    /// What the host knows. A store that assigns the subnets itself has no use for it.
    pub host: HostEvidence,
}

/// Answers about a host that depend on a lease or an address.
pub trait HostQueries: fmt::Debug + Send + Sync {
    /// Whether a lease is this host's by what identifies it to the backend.
    fn is_own(&self, attrs: &LeaseAttrs) -> bool;

    /// Whether the route to an address leaves by the underlay.
    fn via_underlay(&self, to: IpAddr) -> bool;
}

/// What a host knows that tells its own lease from another node's, and which subnets it must not choose.
///
/// Stores of keys need it: there the nodes themselves decide whose key is whose. The default is a host that knows nothing of a former lease.
#[derive(Clone, Debug, Default)]
pub struct HostEvidence {
    /// The subnet that subnet.env on this host names.
    pub previous: Option<Subnets>,
    /// The bridges of this host from which the gateway of that subnet was removed, since the store gave this node another one.
    pub released: Vec<String>,
    /// MACs of flannel devices present on this host, lower-case with colons.
    pub macs: Vec<String>,
    /// Answers whether a lease is this host's, and which addresses the underlay leads to. `None`: neither is known.
    pub queries: Option<Arc<dyn HostQueries>>,
    /// Whether a flag or its environment variable named the underlay or the public address.
    pub named: bool,
    /// Whether the route to the store leaves by the underlay (or the store is on this host).
    pub store_via_underlay: bool,
    /// Networks of the underlay interface: no subnet may overlap them.
    pub underlay: Vec<IpNet>,
    /// Whether several nodes may publish one address (wireguard behind NAT).
    pub shared_address: bool,
    /// The interface that was chosen; none for a tool that chooses none.
    pub choice: Option<Choice>,
}

/// The interface that a host chose, and what it could choose instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub interface: String,
    /// Why it was chosen.
    pub why: String,
    /// The interfaces of the host, one a line: where another one is the better choice, with the flag to type.
    pub interfaces: String,
}
