//! A parsed list of the store's keys, which shows which lease belongs to which node.

use super::registry::{Entry, Listing};
use crate::lease::{Lease, LeaseAttrs, NodeId, Term};
use crate::manager::Claim;
use crate::wire;
use ipnet::IpNet;
use std::net::IpAddr;
use types::{Addresses, Subnets};

/// List of the store's keys, with parsed values.
#[derive(Clone, Debug)]
pub struct View {
    /// Revision of the store at the time of the list.
    pub revision: i64,
    /// The keys of leases, both readable and unreadable.
    pub items: Vec<Item>,
}

/// One key of the list, with its parsed value.
#[derive(Clone, Debug)]
pub struct Item {
    /// The unparsed entry from the store.
    pub entry: Entry,
    /// Subnets in the key.
    pub subnets: Subnets,
    /// Parsed value; `None` if the value is unreadable.
    pub attrs: Option<LeaseAttrs>,
}

impl View {
    /// Parses a list. The view omits keys without a subnet.
    pub fn of(listing: Listing) -> Self {
        let items = listing.entries.into_iter().filter_map(Item::of).collect();
        Self { revision: listing.revision, items }
    }

    /// Returns the parsed entry of a key.
    pub fn get(&self, key: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.entry.key == key)
    }

    /// Returns the networks that a new lease must not overlap: the subnets of all keys, the addresses of nodes, and the underlay's networks.
    pub fn taken(&self, claim: &Claim) -> Vec<Subnets> {
        let nodes = self
            .items
            .iter()
            .flat_map(Item::addresses)
            .chain(claim.public.v4().copied().map(IpAddr::V4))
            .chain(claim.public.v6().copied().map(IpAddr::V6));
        let nets = nodes
            .map(IpNet::from)
            .chain(claim.host.underlay.iter().map(IpNet::trunc))
            .map(Subnets::from);
        self.items.iter().map(|item| item.subnets).chain(nets).collect()
    }
}

impl Item {
    /// Parses an entry; `None` if the key does not belong to a lease.
    pub fn of(entry: Entry) -> Option<Self> {
        let subnets = entry.subnets()?;
        let attrs = wire::parse_value(&entry.value).ok();
        Some(Self { entry, subnets, attrs })
    }

    /// Returns the node that wrote the lease, if the lease contains the node's identity.
    pub fn node(&self) -> Option<&NodeId> {
        self.attrs.as_ref().and_then(|attrs| attrs.node.as_ref())
    }

    /// Returns whether the lease publishes the given public address of a node. If the node has an IPv4 address, the
    /// function compares only the IPv4 address, as Go flannel does.
    pub fn publishes(&self, public: &Addresses) -> bool {
        self.attrs.as_ref().is_some_and(|attrs| publishes(attrs, public))
    }

    /// Returns the addresses that the lease publishes.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.attrs.as_ref().map(LeaseAttrs::addresses).into_iter().flatten()
    }

    /// Returns whether the key never expires, because the key is attached to no lease of the store.
    pub fn reserved(&self) -> bool {
        self.entry.lease == 0
    }

    /// Returns the store's lease that the holder keeps alive; 0 if the holder keeps no lease alive.
    pub fn keepalive(&self) -> i64 {
        if self.reserved() {
            self.node().and_then(|node| node.lease).unwrap_or(0)
        } else {
            self.entry.lease
        }
    }

    /// Returns the lease; `None` if the lease's value is unreadable.
    pub fn lease(&self) -> Option<Lease> {
        let term = if self.reserved() { Term::Reserved } else { Term::Leased };
        self.attrs.clone().map(|attrs| Lease {
            subnets: self.subnets,
            attrs,
            term,
            since: self.entry.created,
        })
    }
}

/// Returns whether the given attributes publish the given address.
pub fn publishes(attrs: &LeaseAttrs, public: &Addresses) -> bool {
    match (public.v4(), public.v6()) {
        (Some(v4), _) => attrs.public_ip == Some(*v4),
        (None, Some(v6)) => attrs.public_ip.is_none() && attrs.public_ipv6 == Some(*v6),
        (None, None) => false,
    }
}
