//! The leases: ours, the peers', and those that are not used.

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
    /// The device that it publishes; absent with backends that have none.
    pub vtep: Fact<Vtep>,
    /// The leases of the other nodes.
    pub peers: Fact<Vec<Peer>>,
    /// Leases in the store that are not used.
    pub refused: Fact<Vec<Refused>>,
}

/// This node's lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Seconds until it ends unless it is renewed; `None` for a reservation.
    pub ends_in: Option<u64>,
    /// What is wrong with it, or why there is none.
    pub trouble: Option<Problem>,
    /// Whether it ends sooner than `--subnet-lease-renew-margin`.
    pub within_margin: bool,
    /// The addresses that it publishes: those to which peers send.
    pub published: Vec<IpAddr>,
}

/// Another node, by its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's name in its lease; the subnet if the lease has none.
    pub name: Arc<str>,
    /// Its subnets, one a family.
    pub subnets: Subnets,
    /// The addresses that it publishes.
    pub public: Option<Addresses>,
    /// The VNI that it publishes, with vxlan.
    pub vni: Option<u32>,
    /// For how many seconds its holder has been silent, if that is known.
    pub silent: Option<u64>,
    /// What Kubernetes says of its Node, where it answers nothing; `None` with other stores.
    pub node: Option<NodeHealth>,
}

impl Peer {
    /// Returns the addresses that it publishes, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.public.into_iter().flat_map(|public| public.ips())
    }
}

/// What Kubernetes says of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// Whether it is cordoned: no new pods are placed there.
    pub cordoned: bool,
}

/// A lease that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its subnets, or its key where it names none.
    pub lease: String,
    /// The reason, as in the metrics.
    pub reason: String,
    /// The reason as text.
    pub text: String,
}
