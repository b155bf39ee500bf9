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
    /// The addresses that peers are told.
    pub public: Addresses,
    /// What the host knows. A store that assigns the subnets itself has no use for it.
    pub host: HostEvidence,
}

/// What a host knows that tells its own lease from another node's, and which subnets it must not choose.
///
/// Stores of keys need it: there the nodes themselves decide whose key is whose.
#[derive(Clone)]
pub struct HostEvidence {
    /// The subnet that subnet.env on this host names.
    pub previous: Option<Subnets>,
    /// The bridges of this host from which the gateway of that subnet was removed, since the store gave this node another one.
    pub released: Vec<String>,
    /// MACs of flannel devices present on this host, lower-case with colons.
    pub macs: Vec<String>,
    /// Whether a lease is this host's by what identifies it to the backend.
    pub is_own: Arc<dyn Fn(&LeaseAttrs) -> bool + Send + Sync>,
    /// Whether a flag or its environment variable named the underlay or the public address.
    pub named: bool,
    /// Whether the route to the store leaves by the underlay (or the store is on this host).
    pub store_via_underlay: bool,
    /// Whether the route to an address leaves by the underlay.
    pub via_underlay: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
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

impl Default for HostEvidence {
    /// A host that knows nothing of a former lease.
    fn default() -> Self {
        Self {
            previous: None,
            released: Vec::new(),
            macs: Vec::new(),
            is_own: Arc::new(|_| false),
            named: false,
            store_via_underlay: false,
            via_underlay: Arc::new(|_| false),
            underlay: Vec::new(),
            shared_address: false,
            choice: None,
        }
    }
}

impl fmt::Debug for HostEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFacts")
            .field("previous", &self.previous)
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}
