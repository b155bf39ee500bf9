//! Facts about the leases: this node's, the peers', and those that are not used.

use crate::fact::Fact;
pub use run_dir::status_file::Vtep;
use std::net::IpAddr;
use std::sync::Arc;
use types::Subnets;
use types::{Addresses, Problem};

/// Facts about the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// This node's lease; absent while it has none.
    pub own: Fact<Own>,
    /// The device that the lease publishes; absent with backends that publish none.
    pub vtep: Fact<Vtep>,
    /// The leases of the other nodes.
    pub peers: Fact<Vec<Peer>>,
    /// Leases in the store that are not used.
    pub refused: Fact<Vec<Refused>>,
}

/// This node's lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Seconds until the lease ends unless it is renewed; `None` for a reservation.
    pub ends_in: Option<u64>,
    /// What is wrong with the lease, or why there is none.
    pub trouble: Option<Problem>,
    /// Whether the lease ends sooner than `--subnet-lease-renew-margin`.
    pub within_margin: bool,
    /// The addresses that the lease publishes, to which peers send packets.
    pub published: Vec<IpAddr>,
}

/// Another node, by its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's name in its lease; the subnet if the lease has none.
    pub name: Arc<str>,
    /// Its subnets, one for each family.
    pub subnets: Subnets,
    /// The addresses that it publishes.
    pub public: Option<Addresses>,
    /// The VNI that it publishes, with vxlan.
    pub vni: Option<u32>,
    /// Seconds since the holder was last heard from, if known.
    pub silent: Option<u64>,
    /// The health of its Node object, if the peer does not respond; `None` with other stores.
    pub node: Option<NodeHealth>,
}

impl Peer {
    /// Returns the addresses that it publishes, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.public.into_iter().flat_map(|public| public.ips())
    }
}

/// Health of a Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether the condition Ready is True.
    pub ready: bool,
    /// Whether the Node is cordoned, so that no new pods are placed there.
    pub cordoned: bool,
}

/// A lease that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The subnets of the lease, or its key if it has no subnets.
    pub lease: String,
    /// The reason, as in the metrics.
    pub reason: String,
    /// The reason as text.
    pub text: String,
}
