//! Reasons why a node cannot acquire or keep a lease, with the event, the key, the cause and the remedy.

use super::registry::Answer;
use super::view::Item;
use crate::config::{NetworkConfig, Pool};
use crate::lease::{LeaseAttrs, NodeId};
use crate::manager::{Choice, Claim};
use crate::reason::Lasting;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use types::{Addresses, Subnets, nets_overlap};
use types::{Coded, Detail};

/// Holder of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A node whose identity is in the lease.
    Node {
        /// Hostname in the node's lease.
        name: String,
        /// Identity in the node's lease, stable over restarts and address changes.
        id: String,
    },
    /// Go flannel, or an operator.
    Unknown,
}

impl Holder {
    /// Returns the holder that the key's value names.
    pub fn of(item: &Item) -> Self {
        item.node().map_or(Holder::Unknown, |node| Holder::Node {
            name: node.name.to_string(),
            id: node.id.to_string(),
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Node { name, id } => write!(f, "node {name} (id {id})"),
            Holder::Unknown => f.write_str("another node (written by Go flannel or manually)"),
        }
    }
}

/// A node, with the address at which peers reach the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// Public address of the node.
    pub public: Addresses,
}

impl Place {
    fn of(claim: &Claim) -> Self {
        Self { node: claim.node.clone(), public: claim.public }
    }
}

/// Reason why a node has no lease, or lost its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseProblem {
    /// Address of this node that another live node also uses, as on Vagrant machines behind NAT.
    AddressInUse {
        /// This node.
        own: Box<Place>,
        /// The other node.
        holder: Holder,
        /// Subnets of the other node's lease.
        subnets: Subnets,
        /// Key of the lease in the store.
        key: String,
        /// The underlay interface that this node chose.
        choice: Option<Box<Choice>>,
    },
    /// Clone of this node: another machine that runs with this node's identity.
    IdentityInUse {
        /// This node.
        own: Box<Place>,
        /// Hostname of the other node.
        name: String,
        /// Public address of the other node.
        address: String,
        /// Subnets of the other node's lease.
        subnets: Subnets,
    },
    /// Another instance of this node that keeps the contested lease alive.
    Contested {
        /// This node.
        own: Box<Place>,
        /// Hostname of the other node.
        name: String,
        /// The lease.
        subnets: Subnets,
    },
    /// Another instance of this node that has restored the lease and may therefore be alive.
    MayBeContested(Subnets),
    /// A reservation outside the configured network.
    ReservedOutside {
        /// The reserved subnets.
        subnets: Subnets,
        /// Key of the lease in the store.
        key: String,
        /// Networks of the configuration.
        networks: Subnets,
    },
    /// Key that now belongs to another node.
    Taken {
        /// Key of the lease in the store.
        key: String,
        /// The other node.
        holder: Holder,
        /// Address of the other node.
        address: String,
    },
    /// Deletion of this node's key, whose subnet is no longer free.
    Deleted(String),
    /// Another instance of this node that holds the key and has precedence.
    Displaced {
        /// Key of the lease in the store.
        key: String,
        /// The other instance.
        holder: Holder,
        /// Address of the other instance.
        address: String,
    },
    /// Overwrite of this node's key by Go flannel or an operator.
    Overwritten(String),
    /// The pool is exhausted.
    OutOfSubnets {
        /// The pools.
        pools: Vec<Pool>,
        /// Underlay networks that overlap the pools.
        closed: Vec<IpNet>,
    },
    /// Attributes of this node that are not in the store yet.
    Unpublished(Unpublished),
    /// Reply of the store that does not match the request.
    OddAnswer(Box<Answer>),
}

/// Attributes of this node that the peers do not know yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unpublished {
    /// This node's address.
    Address {
        /// Address that this node intends to publish.
        now: String,
        /// Address in this node's lease in the store.
        before: String,
    },
    /// Another attribute.
    Other,
}

fn address(item: &Item) -> String {
    item.attrs.as_ref().map(LeaseAttrs::public_text).unwrap_or_default()
}

fn name(item: &Item) -> String {
    item.node().map(|node| node.name.to_string()).unwrap_or_default()
}

impl LeaseProblem {
    /// Creates the problem for an address that another live node uses.
    pub(crate) fn address_in_use(claim: &Claim, item: &Item) -> Self {
        let choice = claim.host.choice.clone().map(Box::new);
        let (holder, key) = (Holder::of(item), item.entry.key.clone());
        Self::AddressInUse {
            own: Box::new(Place::of(claim)),
            holder,
            subnets: item.subnets,
            key,
            choice,
        }
    }

    /// Creates the problem for an identity that another machine uses.
    pub(crate) fn identity_in_use(claim: &Claim, item: &Item) -> Self {
        Self::IdentityInUse {
            own: Box::new(Place::of(claim)),
            name: name(item),
            address: address(item),
            subnets: item.subnets,
        }
    }

    /// Creates the problem for a lease that another instance of this node keeps alive.
    pub fn contested(claim: &Claim, item: &Item) -> Self {
        Self::Contested { own: Box::new(Place::of(claim)), name: name(item), subnets: item.subnets }
    }

    /// Creates the problem for a reservation outside the network.
    pub(crate) fn reserved_outside(config: &NetworkConfig, item: &Item) -> Self {
        Self::ReservedOutside {
            subnets: item.subnets,
            key: item.entry.key.clone(),
            networks: config.networks,
        }
    }

    /// Creates the problem for a key that now belongs to another node. `item` is `None` if the key does not exist.
    pub fn taken(key: &str, item: Option<&Item>) -> Self {
        match item {
            Some(item) => Self::Taken {
                key: key.to_owned(),
                holder: Holder::of(item),
                address: address(item),
            },
            None => Self::Deleted(key.to_owned()),
        }
    }

    /// Creates the problem for a key that another instance of this node holds with precedence.
    pub fn displaced(key: &str, item: &Item) -> Self {
        Self::Displaced { key: key.to_owned(), holder: Holder::of(item), address: address(item) }
    }

    /// Creates the problem for an exhausted pool.
    pub(crate) fn out_of_subnets(claim: &Claim, config: &NetworkConfig) -> Self {
        let pools: Vec<Pool> =
            config.pools.v4().iter().chain(config.pools.v6().iter()).map(|pool| **pool).collect();
        let overlaps = |net: &&IpNet| pools.iter().any(|pool| nets_overlap(&pool.network, net));
        let closed = claim.host.underlay.iter().filter(overlaps).copied().collect();
        Self::OutOfSubnets { pools, closed }
    }

    /// Creates the problem for attributes that the peers do not know yet.
    pub fn unpublished(published: &LeaseAttrs, wanted: &LeaseAttrs) -> Self {
        Self::Unpublished(if published.same_public(wanted) {
            Unpublished::Other
        } else {
            Unpublished::Address { now: wanted.public_text(), before: published.public_text() }
        })
    }
}

impl Coded for LeaseProblem {
    fn code(&self) -> &'static str {
        match self {
            Self::AddressInUse { .. } => "address-in-use",
            Self::IdentityInUse { .. } => "identity-in-use",
            Self::Contested { .. } => "lease-contested",
            Self::MayBeContested(_) => "lease-may-be-contested",
            Self::ReservedOutside { .. } => "reservation-outside-network",
            Self::Taken { .. } => "lease-taken",
            Self::Deleted(_) => "lease-deleted",
            Self::Displaced { .. } => "lease-displaced",
            Self::Overwritten(_) => "lease-overwritten",
            Self::OutOfSubnets { .. } => "out-of-subnets",
            Self::Unpublished(_) => "lease-unpublished",
            Self::OddAnswer(_) => "store-odd-answer",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Self::AddressInUse { own, holder, .. } => Detail::AddressInUse {
                address: own.public.v4().copied().map(IpAddr::V4).or(own
                    .public
                    .v6()
                    .copied()
                    .map(IpAddr::V6)),
                holder: holder.to_string(),
            },
            Self::IdentityInUse { name, .. } => Detail::IdentityInUse { holder: name.clone() },
            Self::OutOfSubnets { .. } => Detail::OutOfSubnets,
            _ => Detail::None,
        }
    }
}

fn write_address_in_use(
    f: &mut fmt::Formatter<'_>,
    own: &Place,
    holder: &Holder,
    subnets: &Subnets,
    key: &str,
    choice: Option<&Choice>,
) -> fmt::Result {
    write!(
        f,
        "the public address {} of this node ({}, id {}) is already the address of {holder}, which holds {subnets} and is alive. Other nodes cannot distinguish nodes that share an address. This conflict is usual where every machine has the same address on its NAT interface (Vagrant's 10.0.2.15): name the interface that connects the nodes. ",
        own.public, own.node.name, own.node.id,
    )?;
    if let Some(choice) = choice {
        let Choice { interface, why, interfaces } = choice;
        write!(
            f,
            "This node chose {interface}: {why}. Its interfaces:\n{interfaces}Start it with --iface=NAME of the one that reaches the other nodes."
        )?;
    }
    write!(
        f,
        " If the other node never returns, its lease is available 3 minutes after the last keepalive (or after a change of etcd's leader). `flannelctl release {key}` frees the lease at once."
    )
}

fn write_out_of_subnets(
    f: &mut fmt::Formatter<'_>,
    pools: &[Pool],
    closed: &[IpNet],
) -> fmt::Result {
    let sizes: Vec<String> =
        pools.iter().map(|pool| format!("{} in {}", pool.size(), pool.network)).collect();
    let closed: Vec<String> = closed.iter().map(ToString::to_string).collect();
    let closed = if closed.is_empty() {
        String::new()
    } else {
        format!(", or overlaps {}, the network of the nodes", closed.join(" and "))
    };
    write!(
        f,
        "out of subnets: every subnet of the pool ({}) is taken{closed}. This node waits for a free subnet. Widen Network or SubnetMax, choose a longer SubnetLen for new clusters, or use `flannelctl release` to free leases of nodes that are gone.",
        sizes.join(", ")
    )
}

fn write_identity_in_use(
    f: &mut fmt::Formatter<'_>,
    own: &Place,
    name: &impl fmt::Display,
    address: &impl fmt::Display,
    subnets: &impl fmt::Display,
) -> fmt::Result {
    write!(
        f,
        "another machine uses this node's identity {}: it is named {name}, has the address {address}, holds {subnets} and was seen within the last 3 minutes. This machine is named {} and has the address {}. Cloned machines share an identity: give this machine its own /etc/machine-id (`rm /etc/machine-id; systemd-machine-id-setup`), or start flanneld with --node-id=NAME.",
        own.node.id, own.node.name, own.public,
    )
}

impl fmt::Display for LeaseProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressInUse { own, holder, subnets, key, choice } => {
                write_address_in_use(f, own, holder, subnets, key, choice.as_deref())
            }
            Self::IdentityInUse { own, name, address, subnets } => {
                write_identity_in_use(f, own, name, address, subnets)
            }
            Self::Contested { own, name, subnets } => write!(
                f,
                "another running flanneld, named {name}, has this node's identity ({}) and address ({}), and renews this node's lease {subnets}. Stop one of the two daemons, or give each daemon its own --node-id and address.",
                own.node.id, own.public,
            ),
            Self::MayBeContested(subnets) => {
                write!(
                    f,
                    "another instance has restored the lease of {subnets}: flanneld waits to check whether that instance is still running"
                )
            }
            Self::ReservedOutside { subnets, key, networks } => write!(
                f,
                "the subnet {subnets} is reserved for this node (key subnets/{key}, without a lease), but lies outside the configured network {networks}. \
                 flanneld never removes a reservation; delete the key, or correct Network in the configuration."
            ),
            Self::Taken { key, holder, address } => {
                write!(
                    f,
                    "this node's lease subnets/{key} now belongs to {holder} at {address}; this node leases another subnet"
                )
            }
            Self::Deleted(key) => write!(
                f,
                "this node's lease subnets/{key} was deleted and its subnet is no longer free; this node leases another subnet"
            ),
            Self::Displaced { key, holder, address } => write!(
                f,
                "the lease subnets/{key} is held by an earlier running flanneld with this node's identity or address: {holder} at {address}. Two daemons on one lease would overwrite each other forever, so this daemon stops. Give each node its own address (--iface) and identity (--node-id)."
            ),
            Self::Overwritten(key) => write!(
                f,
                "Go flannel or an operator overwrote this node's lease subnets/{key} with this node's address: another machine may have the \
                 same address. flanneld does not change the data plane, and restores the lease once a minute. Search for a second machine with this address."
            ),
            Self::OutOfSubnets { pools, closed } => write_out_of_subnets(f, pools, closed),
            Self::Unpublished(Unpublished::Other) => {
                f.write_str("the peers do not know yet that this node's lease has changed")
            }
            Self::Unpublished(Unpublished::Address { now, before }) => {
                write!(
                    f,
                    "the peers do not know yet that this node's address is {now} and no longer {before}"
                )
            }
            Self::OddAnswer(answer) => {
                write!(f, "the store returned {answer:?} for a transaction")
            }
        }
    }
}

impl Lasting for LeaseProblem {
    fn topic(&self) -> String {
        self.code().to_owned()
    }
}
