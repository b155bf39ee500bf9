//! Reasons why a node cannot acquire or keep a lease, with the event, the key, the cause and the remedy.

use super::registry::Answer;
use super::view::Item;
use crate::config::{NetworkConfig, Pool};
use crate::lease::{LeaseAttrs, NodeId};
use crate::manager::{Choice, Claim};
use crate::reason::Lasting;
use ipnet::IpNet;
use std::fmt;
use thiserror::Error;
use types::{Addresses, Coded, Detail, Subnets, nets_overlap};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// `id` is stable over restarts and address changes.
    Node { name: String, id: String },
    /// Go flannel, or an operator.
    Unknown,
}

impl Holder {
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: NodeId,
    pub public: Addresses,
}

impl Place {
    fn of(claim: &Claim) -> Self {
        Self { node: claim.node.clone(), public: claim.public }
    }
}

/// `key` is the key of the lease in the store.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum LeaseError {
    /// Another live node also uses this node's address, as on Vagrant machines behind NAT.
    #[error(
        "the public address {} of this node ({}, id {}) is already the address of {holder}, which holds {subnets} and is alive. Other nodes cannot distinguish nodes that share an address. This conflict is usual where every machine has the same address on its NAT interface (Vagrant's 10.0.2.15): name the interface that connects the nodes. {} If the other node never returns, its lease is available 3 minutes after the last keepalive (or after a change of etcd's leader). `flannelctl release {key}` frees the lease at once.",
        own.public, own.node.name, own.node.id, choice_text(choice.as_deref())
    )]
    #[detail(Detail::AddressInUse { address: own.public.ips().next(), holder: holder.to_string() })]
    AddressInUse {
        own: Box<Place>,
        holder: Holder,
        subnets: Subnets,
        key: String,
        choice: Option<Box<Choice>>,
    },
    /// Another machine has this node's identity. `name`, `address` and `subnets` are those of the other machine.
    #[error(
        "another machine uses this node's identity {}: it is named {name}, has the address {address}, holds {subnets} and was seen within the last 3 minutes. This machine is named {} and has the address {}. Cloned machines share an identity: give this machine its own /etc/machine-id (`rm /etc/machine-id; systemd-machine-id-setup`), or start flanneld with --node-id=NAME.",
        own.node.id, own.node.name, own.public
    )]
    #[detail(Detail::IdentityInUse { holder: name.clone() })]
    IdentityInUse { own: Box<Place>, name: String, address: String, subnets: Subnets },
    /// Another instance of this node keeps the lease alive.
    #[error(
        "another running flanneld, named {name}, has this node's identity ({}) and address ({}), and renews this node's lease {subnets}. Stop one of the two daemons, or give each daemon its own --node-id and address.",
        own.node.id, own.public
    )]
    #[code("lease-contested")]
    Contested { own: Box<Place>, name: String, subnets: Subnets },
    #[error(
        "another instance has restored the lease of {0}: flanneld waits to check whether that instance is still running"
    )]
    #[code("lease-may-be-contested")]
    MayBeContested(Subnets),
    /// `networks` are those of the configuration.
    #[error(
        "the subnet {subnets} is reserved for this node (key subnets/{key}, without a lease), but lies outside the configured network {networks}. \
         flanneld never removes a reservation; delete the key, or correct Network in the configuration."
    )]
    #[code("reservation-outside-network")]
    ReservedOutside { subnets: Subnets, key: String, networks: Subnets },
    #[error(
        "this node's lease subnets/{key} now belongs to {holder} at {address}; this node leases another subnet"
    )]
    #[code("lease-taken")]
    Taken { key: String, holder: Holder, address: String },
    #[error(
        "this node's lease subnets/{0} was deleted and its subnet is no longer free; this node leases another subnet"
    )]
    #[code("lease-deleted")]
    Deleted(String),
    /// Another instance of this node holds the key and has precedence.
    #[error(
        "the lease subnets/{key} is held by an earlier running flanneld with this node's identity or address: {holder} at {address}. Two daemons on one lease would overwrite each other forever, so this daemon stops. Give each node its own address (--iface) and identity (--node-id)."
    )]
    #[code("lease-displaced")]
    Displaced { key: String, holder: Holder, address: String },
    #[error(
        "Go flannel or an operator overwrote this node's lease subnets/{0} with this node's address: another machine may have the \
         same address. flanneld does not change the data plane, and restores the lease once a minute. Search for a second machine with this address."
    )]
    #[code("lease-overwritten")]
    Overwritten(String),
    /// `closed` are the underlay networks that overlap the pools.
    #[error(
        "out of subnets: every subnet of the pool ({}) is taken{}. This node waits for a free subnet. Widen Network or SubnetMax, choose a longer SubnetLen for new clusters, or use `flannelctl release` to free leases of nodes that are gone.",
        pools.iter().map(|pool| format!("{} in {}", pool.size(), pool.network)).collect::<Vec<_>>().join(", "),
        closed_text(closed)
    )]
    #[detail(Detail::OutOfSubnets)]
    OutOfSubnets { pools: Vec<Pool>, closed: Vec<IpNet> },
    /// Any attributes of this node except its address.
    #[error("the peers do not know yet that this node's lease has changed")]
    #[code("lease-unpublished")]
    Unpublished,
    #[error("the peers do not know yet that this node's address is {now} and no longer {before}")]
    #[code("lease-unpublished")]
    UnpublishedAddress { now: String, before: String },
    #[error("the store returned {0:?} for a transaction")]
    #[code("store-odd-answer")]
    OddAnswer(Box<Answer>),
}

fn choice_text(choice: Option<&Choice>) -> String {
    choice.map_or_else(String::new, |Choice { interface, why, interfaces }| {
        format!(
            "This node chose {interface}: {why}. Its interfaces:\n{interfaces}Start it with --iface=NAME of the one that reaches the other nodes."
        )
    })
}

fn closed_text(closed: &[IpNet]) -> String {
    let closed: Vec<String> = closed.iter().map(ToString::to_string).collect();
    if closed.is_empty() {
        return String::new();
    }
    format!(", or overlaps {}, the network of the nodes", closed.join(" and "))
}

fn address(item: &Item) -> String {
    item.attrs.as_ref().map(LeaseAttrs::public_text).unwrap_or_default()
}

fn name(item: &Item) -> String {
    item.node().map(|node| node.name.to_string()).unwrap_or_default()
}

impl LeaseError {
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

    pub(crate) fn identity_in_use(claim: &Claim, item: &Item) -> Self {
        Self::IdentityInUse {
            own: Box::new(Place::of(claim)),
            name: name(item),
            address: address(item),
            subnets: item.subnets,
        }
    }

    pub fn contested(claim: &Claim, item: &Item) -> Self {
        Self::Contested { own: Box::new(Place::of(claim)), name: name(item), subnets: item.subnets }
    }

    pub(crate) fn reserved_outside(config: &NetworkConfig, item: &Item) -> Self {
        Self::ReservedOutside {
            subnets: item.subnets,
            key: item.entry.key.clone(),
            networks: config.networks,
        }
    }

    /// `item` is `None` if the key does not exist.
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

    pub fn displaced(key: &str, item: &Item) -> Self {
        Self::Displaced { key: key.to_owned(), holder: Holder::of(item), address: address(item) }
    }

    pub(crate) fn out_of_subnets(claim: &Claim, config: &NetworkConfig) -> Self {
        let pools: Vec<Pool> =
            config.pools.v4().iter().chain(config.pools.v6().iter()).map(|pool| **pool).collect();
        let overlaps = |net: &&IpNet| pools.iter().any(|pool| nets_overlap(&pool.network, net));
        let closed = claim.host.underlay.iter().filter(overlaps).copied().collect();
        Self::OutOfSubnets { pools, closed }
    }

    pub fn unpublished(published: &LeaseAttrs, wanted: &LeaseAttrs) -> Self {
        if published.same_public(wanted) {
            return Self::Unpublished;
        }
        Self::UnpublishedAddress { now: wanted.public_text(), before: published.public_text() }
    }
}

impl Lasting for LeaseError {
    fn topic(&self) -> String {
        self.code().to_owned()
    }
}
