//! Facts about the leases: this node's lease, the peers' leases, and the leases that this node does not use.

use crate::fact::Fact;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Problem, Subnets};

/// Facts about the leases in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// This node's lease; absent while the node has no lease.
    pub own: Fact<Own>,
    /// The leases of the other nodes.
    pub peers: Fact<Vec<Peer>>,
    /// Leases in the store that this node does not use.
    pub refused: Fact<Vec<Refused>>,
}

/// This node's lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Seconds until the lease ends without a renewal; `None` for a reservation.
    pub ends_in: Option<u64>,
    /// The problem with the lease, or the reason why the node has no lease.
    pub trouble: Option<Problem>,
    /// Whether the lease ends within `--subnet-lease-renew-margin`.
    pub within_margin: bool,
    /// The addresses that the lease publishes. Peers send packets to these addresses.
    pub published: Vec<IpAddr>,
}

/// A peer, as described by the peer's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's name from its lease; the subnet if the lease contains no name.
    pub name: Arc<str>,
    /// The peer's subnets, one for each address family.
    pub subnets: Subnets,
    /// The addresses that the peer's lease publishes.
    pub public: Option<Addresses>,
    /// The VNI that the peer's lease publishes, with vxlan.
    pub vni: Option<u32>,
    /// Seconds since the lease holder last sent a message to Kubernetes or the store, if known.
    pub silent: Option<u64>,
    /// The health of the peer's Node object, if the peer does not respond; `None` if the store is not Kubernetes.
    pub node: Option<NodeHealth>,
}

impl Peer {
    /// Returns the addresses that the peer's lease publishes, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.public.into_iter().flat_map(|public| public.ips())
    }
}

/// Health of a peer's Node object in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether the condition Ready of the Node is True.
    pub ready: bool,
    /// Whether the Node is cordoned, so that Kubernetes schedules no new pods on it.
    pub cordoned: bool,
}

/// A lease that this node does not use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The subnets of the lease, or the lease's key in the store if the lease contains no subnets.
    pub lease: String,
    /// The reason why this node does not use the lease, as in the metrics.
    pub reason: String,
    /// The reason why this node does not use the lease, as text.
    pub text: String,
    /// The address that the lease publishes, if it is an address of this host.
    pub address: Option<IpAddr>,
}
