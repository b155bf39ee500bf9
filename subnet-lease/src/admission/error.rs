//! Leases that a node does not use, with the reasons.

use super::terms::Reason;
use ipnet::IpNet;
use std::net::IpAddr;
use thiserror::Error;
use types::{Addresses, Coded, Problem, Subnets};

/// A lease or a subnet of a dual-stack lease that a node does not use.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("{}{why}{}", self.subject(), self.consequence())]
#[code(self.reason().label())]
#[parts(match why {
    UnusedLeaseError::Unusable(why) => vec![Problem::clone(why)],
    _ => Vec::new(),
})]
pub struct AdmissionError {
    /// They form the lease's key in the store.
    pub subnets: Subnets,
    /// The subnet of a dual-stack lease that the node does not use, if it uses the other one.
    pub half: Option<IpNet>,
    pub why: UnusedLeaseError,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnusedLeaseError {
    /// With the pod network.
    #[error("is not a subnet of {0}")]
    Outside(Subnets),
    #[error("overlaps this node's own subnet {0}")]
    OverlapsOurs(Subnets),
    #[error("overlaps {0}, the network of the underlay; {FREE_IT}")]
    OverlapsUnderlay(IpNet),
    #[error("overlaps the older lease {0}")]
    OverlapsOlder(IpNet),
    /// `address` is the address of the node with the older lease.
    #[error("contains {address}, the address of the node with the older lease {older}; {FREE_IT}")]
    HoldsNode { address: IpAddr, older: Subnets },
    // The Vagrant trap, as seen by a third node.
    #[error(
        "which is also an address of this host: packets for that lease would return to this host. For example, every Vagrant machine has the address 10.0.2.15 on its NAT interface. On the other node, start flanneld with --iface naming the interface that connects the nodes. If the address is that node's own, remove it from this host (flannelctl doctor names its interface)"
    )]
    OurAddress { node: Option<String>, address: IpAddr },
    /// The public address cannot belong to a node, e.g. a loopback address.
    #[error("is published at {0}, which no node can have")]
    NoHost(IpAddr),
    /// `net` is a leased subnet.
    #[error(
        "is published at {address}, which is in the leased subnet {net}: packets for that node would not leave this node. Give the other node an address outside the leased subnets (--iface or --public-ip), or choose another Network"
    )]
    InsideSubnet { address: IpAddr, net: IpNet },
    #[error("is published without an address of its family")]
    NoAddress,
    /// `links` are the networks of the lease's families that the underlay reaches without a gateway.
    #[error(
        "is published at {}, which is on no network of this node's underlay ({}): {backend} needs a direct link to each node. Connect the \
         nodes to one network, choose another interface with --iface on one of them, or use the vxlan backend",
        place(at),
        joined(links)
    )]
    OffLink { at: Option<Addresses>, links: Vec<IpNet>, backend: String },
    /// `theirs` is empty for udp and alloc, whose names Go flannel does not write into leases.
    #[error(
        "of the node at {} uses backend {}, but this network uses {ours}; restart flanneld on that node, or restore Backend.Type, so that all nodes use the same backend",
        place(at),
        if theirs.is_empty() { "udp or alloc" } else { theirs }
    )]
    OtherBackend { at: Option<Addresses>, theirs: String, ours: String },
    /// An operator reserved it for the node with these addresses.
    #[error("is reserved for the node at {}, which has not acquired the lease yet", place(.0))]
    Reserved(Option<Addresses>),
    /// The backend cannot use the value.
    #[error("{0}")]
    Unusable(Box<Problem>),
    /// The lease of another node at `at` has the same MAC or public key.
    #[error(
        "the node at {} already uses {identity}",
        at.map_or_else(|| "no address".to_owned(), |at| at.to_string())
    )]
    SameIdentity { identity: String, at: Option<IpAddr> },
    /// This node's own MAC or public key. `older`: the lease belongs to another node and is older than this node's lease.
    #[error("{identity} is this node's own")]
    OwnIdentity { identity: String, older: bool },
}

impl AdmissionError {
    /// The metrics use it as a label value.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match &self.why {
            UnusedLeaseError::Outside(_) => Reason::Outside,
            UnusedLeaseError::OverlapsOurs(_) => Reason::OverlapsOurs,
            UnusedLeaseError::OverlapsUnderlay(_) => Reason::OverlapsUnderlay,
            UnusedLeaseError::OverlapsOlder(_) => Reason::OverlapsOlder,
            UnusedLeaseError::HoldsNode { .. } => Reason::HoldsNode,
            UnusedLeaseError::OurAddress { .. } => Reason::OurAddress,
            UnusedLeaseError::NoHost(_) => Reason::NoHost,
            UnusedLeaseError::InsideSubnet { .. } => Reason::InsideSubnet,
            UnusedLeaseError::NoAddress => Reason::NoAddress,
            UnusedLeaseError::OffLink { .. } => Reason::OffLink,
            UnusedLeaseError::OtherBackend { .. } => Reason::OtherBackend,
            UnusedLeaseError::Reserved(_) => Reason::Reserved,
            UnusedLeaseError::Unusable(_) => Reason::Unusable,
            UnusedLeaseError::SameIdentity { .. }
            | UnusedLeaseError::OwnIdentity { older: false, .. } => Reason::SameIdentity,
            UnusedLeaseError::OwnIdentity { older: true, .. } => Reason::OurIdentity,
        }
    }

    fn subject(&self) -> String {
        let lease = self.subnets;
        match (&self.why, self.half) {
            (
                UnusedLeaseError::Unusable(_)
                | UnusedLeaseError::SameIdentity { .. }
                | UnusedLeaseError::OwnIdentity { .. },
                None,
            ) => format!("cannot use the value of {lease}: "),
            (UnusedLeaseError::Unusable(_), Some(half)) => {
                format!("{half} of {lease} cannot be used: ")
            }
            (UnusedLeaseError::OurAddress { node, address }, _) => {
                let node = node.as_deref().unwrap_or("another node");
                format!("{node} publishes {address} for {lease}, ")
            }
            (_, Some(half)) => format!("{half} of {lease} "),
            (_, None) => format!("{lease} "),
        }
    }

    fn consequence(&self) -> &'static str {
        match (&self.why, self.half) {
            (UnusedLeaseError::NoAddress, None) => ": its node cannot be reached",
            _ => "",
        }
    }
}

/// Remedy for a lease of a subnet that nodes must not lease. Its former holder then leases another one.
const FREE_IT: &str = "free the lease with `flannelctl release` and restart flanneld on the node that held the lease; that node then leases another subnet";

fn place(at: &Option<Addresses>) -> String {
    at.map_or_else(|| "no public address".to_owned(), |at| at.to_string())
}

fn joined(links: &[IpNet]) -> String {
    let links: Vec<String> = links.iter().map(ToString::to_string).collect();
    links.join(", ")
}
