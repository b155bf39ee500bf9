//! The lease of a node: its subnets and the attributes that the node publishes.

use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use types::{Addresses, Dual, Family, Problem, Subnets};

/// A node's lease: its subnets and the attributes that the node publishes to the peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The subnets, which identify the lease.
    pub subnets: Subnets,
    /// Attributes that the node publishes.
    pub attrs: LeaseAttrs,
    /// Whether the lease expires.
    pub term: Term,
    /// Position of the lease in the store's order of creation. If two leases overlap, the older lease takes precedence.
    pub since: i64,
}

/// Whether a lease expires. Only the store knows when a peer's lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// Lease that expires when its holder no longer renews it.
    Leased,
    /// Lease that never expires, because an operator reserved the subnet.
    Reserved,
}

/// Attributes that a node publishes in addition to its subnets.
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
    /// The backend's IPv6 data.
    pub v6_data: Option<RawJson>,
    /// Fields that this version of flannel-rs does not know, unchanged and in the original order.
    pub unknown: Vec<(String, RawJson)>,
    /// The node that wrote the lease. Go flannel ignores the node's identity in a lease, and writes no identity.
    pub node: Option<NodeId>,
}

impl LeaseAttrs {
    /// Returns the addresses at which peers reach the node, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        Family::ALL.map(|family| self.public_for(family)).into_iter().flatten()
    }

    /// Returns the node's public address of an address family.
    pub fn public_for(&self, family: Family) -> Option<IpAddr> {
        family.pick(self.public_ip.map(IpAddr::V4), self.public_ipv6.map(IpAddr::V6))
    }

    /// Returns the public addresses; `None` if the lease has no public address.
    pub fn public(&self) -> Option<Addresses> {
        Dual::from_options(self.public_ip, self.public_ipv6)
    }

    /// Returns whether both leases publish the same data to peers: addresses, backend and backend data.
    #[cfg(any(feature = "kube", feature = "protocol"))]
    pub(crate) fn tells_the_same(&self, other: &LeaseAttrs) -> bool {
        self.same_public(other)
            && self.backend == other.backend
            && self.data == other.data
            && self.v6_data == other.v6_data
    }

    /// Returns whether both leases publish the same addresses.
    #[cfg(any(feature = "kube", feature = "protocol"))]
    pub(crate) fn same_public(&self, other: &LeaseAttrs) -> bool {
        (self.public_ip, self.public_ipv6) == (other.public_ip, other.public_ipv6)
    }

    /// Returns the node's public addresses as text for messages.
    pub fn public_text(&self) -> String {
        self.public().map_or_else(|| "no public address".to_owned(), |public| public.to_string())
    }
}

/// Rules of a backend: which leases the backend can use, and which data identifies a node. The methods have no side effects.
pub trait PeerRules: Send + Sync {
    /// Decides whether the backend can use a lease.
    ///
    /// # Errors
    /// Returns the reason if the backend cannot use the lease.
    fn accepts(&self, _lease: &Lease) -> Result<(), Problem> {
        Ok(())
    }

    /// Reads the part of a lease's backend data that is unique to a node (a MAC, a key), in canonical form.
    /// The function returns `None` if the backend data of the family contains no such part.
    fn identity(&self, _attrs: &LeaseAttrs, _family: Family) -> Option<String> {
        None
    }

    /// Returns the identity that the backend derives from the id of a lease's node; `None` if the backend derives none.
    fn derived(&self, _node: &NodeId, _family: Family) -> Option<String> {
        None
    }
}

/// Accepts every lease.
impl PeerRules for () {}

/// The node that holds a lease, and the run of the node's daemon that wrote the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct NodeId {
    /// Id of the node, which stays the same over restarts and address changes.
    pub id: Arc<str>,
    /// The hostname.
    pub name: Arc<str>,
    /// Id of the daemon's run, random for each start.
    pub instance: String,
    /// Revision of the store at which the instance acquired the lease. An instance that started earlier has a lower rank.
    pub rank: i64,
    /// Id of the store's lease that the holder of a reservation keeps alive.
    pub lease: Option<i64>,
    /// Whether the holder had to restore its key after another instance changed the key.
    pub contested: bool,
    /// Whether Go flannel wrote the lease. Go flannel does not reply to probes. Only the Kubernetes store sets this
    /// field, because in Kubernetes every node has an identity (the Node's name), even with Go
    /// flannel. In other stores than Kubernetes, Go flannel writes no identity.
    #[serde(skip)]
    pub by_go: bool,
}

impl NodeId {
    /// Returns the sort key for instances that claim the same key of the store: the instance with the lowest sort key keeps the claimed key.
    pub fn precedence(&self) -> (i64, &str, &str) {
        (self.rank, &self.id, &self.instance)
    }
}

/// A well-formed JSON value, kept as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawJson(Arc<str>);

impl RawJson {
    /// Parses a text that is one JSON value, and drops the white space around the value.
    ///
    /// # Errors
    /// Returns the parser's error if the text is not one JSON value.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let raw: &serde_json::value::RawValue = serde_json::from_str(text)?;
        Ok(Self(Arc::from(raw.get())))
    }

    /// Serializes a value to JSON text.
    pub fn of(value: &impl serde::Serialize) -> Self {
        Self(Arc::from(serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())))
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
