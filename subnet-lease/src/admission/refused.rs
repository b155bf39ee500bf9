//! Leases that a node does not use, with the reasons.

use super::terms::Reason;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use types::{Addresses, Coded, Problem, Subnets};

/// A lease or a subnet of a dual-stack lease that a node does not use, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Subnets of the lease, which form its key in the store.
    pub subnets: Subnets,
    /// The subnet of a dual-stack lease that the node does not use, if the node uses the lease's other subnet.
    pub half: Option<IpNet>,
    /// Reason why the node does not use the lease or the subnet.
    pub why: Why,
}

/// Reason why a node does not use a lease, or one subnet of a dual-stack lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Lease that is not inside the pod network, which consists of these IP networks.
    Outside(Subnets),
    /// Lease that overlaps this node's own lease of these subnets.
    OverlapsOurs(Subnets),
    /// Lease that overlaps this network of the underlay.
    OverlapsUnderlay(IpNet),
    /// Lease that overlaps this subnet of an older lease.
    OverlapsOlder(IpNet),
    /// Lease that contains the address of a node with an older lease.
    HoldsNode {
        /// Address of the node with the older lease.
        address: IpAddr,
        /// The older lease.
        older: Subnets,
    },
    /// Lease whose public address is an address of this host.
    OurAddress {
        /// Name of the lease's node, if the lease contains the name.
        node: Option<String>,
        /// Public address of the lease.
        address: IpAddr,
    },
    /// Lease whose public address cannot belong to a node, e.g. a loopback address.
    NoHost(IpAddr),
    /// Lease whose public address lies inside a leased subnet.
    InsideSubnet {
        /// Public address of the lease.
        address: IpAddr,
        /// The leased subnet.
        net: IpNet,
    },
    /// Lease without a public address in the address family of its subnet.
    NoAddress,
    /// Lease whose public addresses the underlay reaches only through a gateway.
    OffLink {
        /// Public addresses of the lease.
        at: Option<Addresses>,
        /// Networks of the lease's address families that the underlay reaches without a gateway.
        links: Vec<IpNet>,
        /// Name of the backend, which needs a direct link between nodes.
        backend: String,
    },
    /// Lease of a node that uses another backend.
    OtherBackend {
        /// Public addresses of the lease's node; `None` if the lease has no public address.
        at: Option<Addresses>,
        /// Beginning of the other backend's name; empty for udp and alloc, whose names Go flannel does not write into
        /// leases.
        theirs: String,
        /// Name of this network's backend.
        ours: String,
    },
    /// Lease that an operator reserved for the node with these addresses; the node has not acquired the lease yet.
    Reserved(Option<Addresses>),
    /// Lease whose value the backend cannot use, for this reason.
    Unusable(Box<Problem>),
    /// Lease with the same MAC or public key as the lease of another node.
    SameIdentity {
        /// Beginning of the MAC or public key.
        identity: String,
        /// Public address of the other node; `None` if the other node's lease has no public address.
        at: Option<IpAddr>,
    },
    /// Lease with this node's own MAC or public key.
    OwnIdentity {
        /// Beginning of the MAC or public key.
        identity: String,
        /// Whether the lease belongs to another node and is older than this node's lease.
        older: bool,
    },
}

impl Refused {
    /// Returns the reason without its data; the metrics use the reason as a label value.
    pub fn reason(&self) -> Reason {
        match &self.why {
            Why::Outside(_) => Reason::Outside,
            Why::OverlapsOurs(_) => Reason::OverlapsOurs,
            Why::OverlapsUnderlay(_) => Reason::OverlapsUnderlay,
            Why::OverlapsOlder(_) => Reason::OverlapsOlder,
            Why::HoldsNode { .. } => Reason::HoldsNode,
            Why::OurAddress { .. } => Reason::OurAddress,
            Why::NoHost(_) => Reason::NoHost,
            Why::InsideSubnet { .. } => Reason::InsideSubnet,
            Why::NoAddress => Reason::NoAddress,
            Why::OffLink { .. } => Reason::OffLink,
            Why::OtherBackend { .. } => Reason::OtherBackend,
            Why::Reserved(_) => Reason::Reserved,
            Why::Unusable(_) => Reason::Unusable,
            Why::SameIdentity { .. } | Why::OwnIdentity { older: false, .. } => {
                Reason::SameIdentity
            }
            Why::OwnIdentity { older: true, .. } => Reason::OurIdentity,
        }
    }
}

impl Coded for Refused {
    fn code(&self) -> &'static str {
        self.reason().label()
    }

    fn parts(&self) -> Vec<Problem> {
        match &self.why {
            Why::Unusable(why) => vec![Problem::clone(why)],
            _ => Vec::new(),
        }
    }
}

/// Remedy for a lease of a subnet that nodes must not lease. After an operator applies the remedy, the former holder leases another subnet.
const FREE_IT: &str = "free the lease with `flannelctl release` and restart flanneld on the node that held the lease; that node then leases another subnet";

fn place(at: &Option<Addresses>) -> String {
    at.map_or_else(|| "no public address".to_owned(), |at| at.to_string())
}

fn joined(links: &[IpNet]) -> String {
    let links: Vec<String> = links.iter().map(ToString::to_string).collect();
    links.join(", ")
}

impl Refused {
    /// Writes the beginning of the message, which names the lease or the refused subnet of a dual-stack lease.
    fn write_subject(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.subnets;
        match (&self.why, self.half) {
            (Why::Unusable(_) | Why::SameIdentity { .. } | Why::OwnIdentity { .. }, None) => {
                write!(f, "cannot use the value of {lease}: ")
            }
            (Why::OurAddress { .. }, _) => Ok(()),
            (_, Some(half)) => write!(f, "{half} of {lease} "),
            (_, None) => write!(f, "{lease} "),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.subnets;
        self.write_subject(f)?;
        match &self.why {
            Why::Outside(networks) => write!(f, "is not a subnet of {networks}"),
            Why::OverlapsOurs(own) => write!(f, "overlaps this node's own subnet {own}"),
            Why::OverlapsUnderlay(net) => {
                write!(f, "overlaps {net}, the network of the underlay; {FREE_IT}")
            }
            Why::OverlapsOlder(older) => write!(f, "overlaps the older lease {older}"),
            Why::HoldsNode { address, older } => {
                write!(
                    f,
                    "contains {address}, the address of the node with the older lease {older}; {FREE_IT}"
                )
            }
            // The Vagrant trap, as seen by a third node.
            Why::OurAddress { node, address } => write!(
                f,
                "{} publishes {address} for {lease}, which is also an address of this host: packets for that lease would return to this host. For example, every Vagrant machine has the address 10.0.2.15 on its NAT interface. On the other node, start flanneld with --iface naming the interface that connects the nodes. If the address is that node's own, remove it from this host (flannelctl doctor names its interface)",
                node.as_deref().unwrap_or("another node")
            ),
            Why::NoHost(address) => {
                write!(f, "is published at {address}, which no node can have")
            }
            Why::InsideSubnet { address, net } => write!(
                f,
                "is published at {address}, which is in the leased subnet {net}: packets for that node would not leave this node. Give the other node an address outside the leased subnets (--iface or --public-ip), or choose another Network"
            ),
            Why::NoAddress if self.half.is_some() => {
                f.write_str("is published without an address of its family")
            }
            Why::NoAddress => f.write_str(
                "is published without an address of its family: its node cannot be reached",
            ),
            Why::OffLink { at, links, backend } => write!(
                f,
                "is published at {}, which is on no network of this node's underlay ({}): {backend} needs a direct link to each node. Connect the \
                     nodes to one network, choose another interface with --iface on one of them, or use the vxlan backend",
                place(at),
                joined(links)
            ),
            Why::OtherBackend { at, theirs, ours } => write!(
                f,
                "of the node at {} uses backend {}, but this network uses {ours}; restart flanneld on that node, or restore Backend.Type, so that all nodes use the same backend",
                place(at),
                if theirs.is_empty() { "udp or alloc" } else { theirs }
            ),
            Why::Reserved(at) => write!(
                f,
                "is reserved for the node at {}, which has not acquired the lease yet",
                place(at)
            ),
            Why::Unusable(why) if self.half.is_some() => write!(f, "cannot be used: {why}"),
            Why::Unusable(why) => why.fmt(f),
            Why::SameIdentity { identity, at } => {
                let at = at.map_or_else(|| "no address".to_owned(), |at| at.to_string());
                write!(f, "the node at {at} already uses {identity}")
            }
            Why::OwnIdentity { identity, .. } => {
                write!(f, "{identity} is this node's own")
            }
        }
    }
}

impl std::error::Error for Refused {}
