//! The lease of a node: its subnets and the attributes that the node publishes.

use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use types::{Addresses, Dual, Family, Problem, Subnets};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// They identify the lease.
    pub subnets: Subnets,
    pub attrs: LeaseAttrs,
    pub term: Term,
    /// Position in the store's order of creation. If two leases overlap, the older one takes precedence.
    pub since: i64,
}

/// Only the store knows when a peer's lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// It expires when its holder no longer renews it.
    Leased,
    /// It never expires, because an operator reserved the subnet.
    Reserved,
}

/// What a node publishes in addition to its subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseAttrs {
    /// The IPv4 address at which peers reach the node.
    pub public_ip: Option<Ipv4Addr>,
    /// The IPv6 address at which peers reach the node.
    pub public_ipv6: Option<Ipv6Addr>,
    /// The backend's wire name; empty for `udp` and `alloc`.
    pub backend: String,
    /// The backend's IPv4 data, e.g. the VTEP's MAC.
    pub data: Option<RawJson>,
    pub v6_data: Option<RawJson>,
    /// Fields that this version of flannel-rs does not know, unchanged and in the original order.
    pub unknown: Vec<(String, RawJson)>,
    /// The node that wrote the lease. Go flannel ignores this identity, and writes none.
    pub node: Option<NodeId>,
}

impl LeaseAttrs {
    /// At these addresses, peers reach the node; IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        Family::ALL.map(|family| self.public_for(family)).into_iter().flatten()
    }

    pub fn public_for(&self, family: Family) -> Option<IpAddr> {
        family.pick(self.public_ip.map(IpAddr::V4), self.public_ipv6.map(IpAddr::V6))
    }

    /// `None` if the lease has no public address.
    #[must_use]
    pub fn public(&self) -> Option<Addresses> {
        Dual::from_options(self.public_ip, self.public_ipv6)
    }

    /// Compares what peers see: addresses, backend and backend data.
    #[cfg(any(feature = "kube", feature = "protocol"))]
    pub(crate) fn tells_the_same(&self, other: &LeaseAttrs) -> bool {
        self.same_public(other)
            && self.backend == other.backend
            && self.data == other.data
            && self.v6_data == other.v6_data
    }

    #[cfg(any(feature = "kube", feature = "protocol"))]
    pub(crate) fn same_public(&self, other: &LeaseAttrs) -> bool {
        (self.public_ip, self.public_ipv6) == (other.public_ip, other.public_ipv6)
    }

    /// For messages.
    #[must_use]
    pub fn public_text(&self) -> String {
        self.public().map_or_else(|| "no public address".to_owned(), |public| public.to_string())
    }
}

/// Rules of a backend: which leases it can use, and which data identifies a node. The methods have no side effects.
pub trait PeerRules: Send + Sync {
    /// The error tells why the backend cannot use the lease.
    fn accepts(&self, _lease: &Lease) -> Result<(), Problem> {
        Ok(())
    }

    /// The part of a lease's backend data that is unique to a node (a MAC, a key), in canonical form. `None` if the data of the family contains no
    /// such part.
    fn identity(&self, _attrs: &LeaseAttrs, _family: Family) -> Option<String> {
        None
    }

    /// The identity that the backend derives from the id of a lease's node; `None` if it derives none.
    fn derived(&self, _node: &NodeId, _family: Family) -> Option<String> {
        None
    }
}

/// Accepts every lease.
impl PeerRules for () {}

/// The node that holds a lease, and the run of its daemon that wrote the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct NodeId {
    /// It stays the same over restarts and address changes.
    pub id: Arc<str>,
    /// The hostname.
    pub name: Arc<str>,
    /// Id of the daemon's run, random for each start.
    pub instance: String,
    /// Revision of the store at which the instance acquired the lease. An instance that started earlier has a lower rank.
    pub rank: i64,
    /// Id of the store's lease that the holder of a reservation keeps alive.
    pub lease: Option<i64>,
    /// The holder had to restore its key after another instance changed it.
    pub contested: bool,
    /// Go flannel wrote the lease. It does not reply to probes. Only the Kubernetes store sets this field, because there every node has an identity
    /// (the Node's name), even with Go flannel. In other stores, Go flannel writes no identity.
    #[serde(skip)]
    pub by_go: bool,
}

impl NodeId {
    /// Of the instances that claim the same key of the store, the one with the lowest value keeps it.
    #[must_use]
    pub fn precedence(&self) -> (i64, &str, &str) {
        (self.rank, &self.id, &self.instance)
    }
}

/// A well-formed JSON value, kept as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawJson(Arc<str>);

impl RawJson {
    /// Drops the white space around the value.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let raw: &serde_json::value::RawValue = serde_json::from_str(text)?;
        Ok(Self(Arc::from(raw.get())))
    }

    pub fn of(value: &impl serde::Serialize) -> Self {
        Self(Arc::from(serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
