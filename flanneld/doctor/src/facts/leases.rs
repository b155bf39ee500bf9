//! Facts about the leases: this node's lease, the peers' leases, and the leases that this node does not use.

use crate::fact::Fact;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Problem, Subnets};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// Absent while this node has no lease.
    pub own: Fact<Own>,
    pub peers: Fact<Vec<Peer>>,
    /// Leases in the store that this node does not use.
    pub refused: Fact<Vec<RefusedLease>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// In seconds; `None` for a reservation.
    pub ends_in: Option<u64>,
    /// A problem with the lease, or why there is none.
    pub trouble: Option<Problem>,
    /// It ends within `--subnet-lease-renew-margin`.
    pub within_margin: bool,
    /// Peers send packets to these addresses.
    pub published: Vec<IpAddr>,
}

/// As its lease describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The subnet if the lease contains no name.
    pub name: Arc<str>,
    pub subnets: Subnets,
    pub public: Option<Addresses>,
    /// With vxlan.
    pub vni: Option<u32>,
    /// Seconds since the holder last sent a message to Kubernetes or the store.
    pub silent: Option<u64>,
    /// Only if the peer does not respond; `None` if the store is not Kubernetes.
    pub node: Option<NodeHealth>,
}

impl Peer {
    /// IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.public.into_iter().flat_map(|public| public.ips())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// The condition Ready is True.
    pub ready: bool,
    /// Kubernetes schedules no new pods on the Node.
    pub cordoned: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedLease {
    /// Its subnets, or its key in the store if it contains none.
    pub lease: String,
    /// As in the metrics.
    pub reason: String,
    /// The reason as text.
    pub text: String,
    /// The published address, if it is one of this host.
    pub address: Option<IpAddr>,
}
