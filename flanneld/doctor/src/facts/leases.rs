//! Facts about the leases: this node's lease, the peers' leases, and the leases that this node does not use.

use crate::fact::Fact;
pub use run_dir::status_file::Vtep;
use std::net::IpAddr;
use std::sync::Arc;
use types::Subnets;
use types::{Addresses, Problem};

/// Facts about the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// This node's lease; absent while the node has no lease.
    pub own: Fact<Own>,
    /// The device that the lease publishes; absent with backends that publish no device.
    pub vtep: Fact<Vtep>,
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
    /// The problem of the lease, or the reason why the node has no lease.
    pub trouble: Option<Problem>,
    /// Whether the lease ends within `--subnet-lease-renew-margin`.
    pub within_margin: bool,
    /// The addresses that the lease publishes, to which peers send packets.
    pub published: Vec<IpAddr>,
}

/// Another node, as its lease describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's name in its lease; the subnet if the lease contains no name.
    pub name: Arc<str>,
    /// The peer's subnets, one for each family.
    pub subnets: Subnets,
    /// The addresses that the peer publishes.
    pub public: Option<Addresses>,
    /// The VNI that the peer publishes, with vxlan.
    pub vni: Option<u32>,
    /// Seconds since Kubernetes or the store last received a message from the holder, if known.
    pub silent: Option<u64>,
    /// The health of the peer's Node object, if the peer does not respond; `None` with other stores.
    pub node: Option<NodeHealth>,
}

impl Peer {
    /// Returns the addresses that the peer publishes, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.public.into_iter().flat_map(|public| public.ips())
    }
}

/// Health of a Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether the condition Ready is True.
    pub ready: bool,
    /// Whether the Node is cordoned, so that Kubernetes schedules no new pods on it.
    pub cordoned: bool,
}

/// A lease that this node does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The subnets of the lease, or the lease's key if it contains no subnets.
    pub lease: String,
    /// The reason, as in the metrics.
    pub reason: String,
    /// The reason as text.
    pub text: String,
}
