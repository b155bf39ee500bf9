//! A parsed list of the store's keys, which shows which lease belongs to which node.

use super::registry::{Entry, Listing};
use crate::lease::{Lease, LeaseAttrs, NodeId, Term};
use crate::manager::Claim;
use crate::wire;
use ipnet::IpNet;
use std::net::IpAddr;
use types::{Addresses, Subnets};

#[derive(Clone, Debug)]
pub struct View {
    /// Revision of the store at the time of the list.
    pub revision: i64,
    /// The keys of leases, both readable and unreadable.
    pub items: Vec<Item>,
}

#[derive(Clone, Debug)]
pub struct Item {
    pub entry: Entry,
    pub subnets: Subnets,
    /// `None` if the value is unreadable.
    pub attrs: Option<LeaseAttrs>,
}

impl View {
    /// Omits keys without a subnet.
    pub fn of(listing: Listing) -> Self {
        let items = listing.entries.into_iter().filter_map(Item::of).collect();
        Self { revision: listing.revision, items }
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.entry.key == key)
    }

    /// What a new lease must not overlap: the subnets of all keys, the addresses of nodes, and the underlay's networks.
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
    /// `None` if the key does not belong to a lease.
    #[must_use]
    pub fn of(entry: Entry) -> Option<Self> {
        let subnets = entry.subnets()?;
        let attrs = wire::parse_value(&entry.value).ok();
        Some(Self { entry, subnets, attrs })
    }

    /// The node that wrote the lease, if the lease contains its identity.
    #[must_use]
    pub fn node(&self) -> Option<&NodeId> {
        self.attrs.as_ref().and_then(|attrs| attrs.node.as_ref())
    }

    /// For a node with an IPv4 address, only that address is compared, as Go flannel does.
    #[must_use]
    pub fn publishes(&self, public: &Addresses) -> bool {
        self.attrs.as_ref().is_some_and(|attrs| publishes(attrs, public))
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.attrs.as_ref().map(LeaseAttrs::addresses).into_iter().flatten()
    }

    /// The key never expires, because it is attached to no lease of the store.
    #[must_use]
    pub fn reserved(&self) -> bool {
        self.entry.lease == 0
    }

    /// The store's lease that the holder keeps alive; 0 if none.
    #[must_use]
    pub fn keepalive(&self) -> i64 {
        if self.reserved() {
            self.node().and_then(|node| node.lease).unwrap_or(0)
        } else {
            self.entry.lease
        }
    }

    /// `None` if the value is unreadable.
    #[must_use]
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

/// See [`Item::publishes`].
#[must_use]
pub fn publishes(attrs: &LeaseAttrs, public: &Addresses) -> bool {
    match (public.v4(), public.v6()) {
        (Some(v4), _) => attrs.public_ip == Some(*v4),
        (None, Some(v6)) => attrs.public_ip.is_none() && attrs.public_ipv6 == Some(*v6),
        (None, None) => false,
    }
}
