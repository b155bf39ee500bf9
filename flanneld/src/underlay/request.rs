//! Requirements on the interface.

use options::Selector;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use subnet_lease::manager::Claimant;
use thiserror::Error;
use types::{Addresses, Coded, Dual, Family};

/// Address families that the network uses.
pub type Families = Dual<(), ()>;

/// Location of the store from this host's point of view: local, or remote with IP addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAt {
    /// Store on this host: loopback, a unix socket or a directory.
    Here,
    /// Store on other hosts, at the addresses of the store's first endpoint.
    There(Vec<IpAddr>),
    /// Unknown location, because the resolver cannot resolve the store's host name.
    Unknown(NameError),
}

/// The store's host name has no address.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum NameError {
    /// `words` are the resolver's.
    #[error("{host}: {words}")]
    #[code("store-name-unresolved")]
    Unresolved { host: String, words: String },
    #[error("{host}: the name server does not respond")]
    #[code("name-server-silent")]
    NoReply { host: String },
}

/// Maximum number of published addresses, and of other addresses. flanneld looks up the addresses' routes one after the
/// other, so the number of addresses is small.
pub(super) const LOOKED_UP: usize = 8;

/// Requirements on the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address families that the network uses.
    pub families: Families,
    /// Selectors of the interface; the first selector that matches takes precedence. The list is empty if the user
    /// named no interface.
    pub selectors: Vec<Selector>,
    /// `--public-ip` and `--public-ipv6`, or the addresses that an operator chose in the store.
    pub public: Option<Addresses>,
    /// Location of the store; the interface that reaches the store may be the right
    /// interface.
    pub store: StoreAt,
    /// Addresses of this node and of other nodes in the store; `None` if the store does not list nodes.
    pub known: Option<KnownAddresses>,
}

/// Addresses of this node and of other nodes, from a store that lists the nodes (Kubernetes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAddresses {
    /// Addresses that this node published most recently.
    pub published: Vec<IpAddr>,
    /// The InternalIPs of this node's Node object.
    pub internal: Vec<IpAddr>,
    /// Whether an operator chose the published address. If an operator chose the published address, the node's own
    /// address need not be unique.
    pub overwritten: bool,
    /// Addresses that other nodes publish or report as their own, each with the claiming node.
    pub taken: BTreeMap<IpAddr, Claimant>,
    /// Addresses of the store's servers.
    pub servers: Vec<IpAddr>,
    /// Addresses that this node stopped using a short time ago, because no peer had responded at these addresses.
    pub left: BTreeSet<IpAddr>,
}

impl KnownAddresses {
    /// Returns addresses of other nodes, which the right interface must reach. The published addresses come first.
    pub fn others(&self) -> impl Iterator<Item = IpAddr> {
        let of = |publishes: bool| {
            self.taken
                .iter()
                .filter(move |(_, claimant)| claimant.publishes == publishes)
                .map(|(ip, _)| *ip)
        };
        of(true).take(LOOKED_UP).chain(of(false).take(LOOKED_UP))
    }
}

impl Request {
    /// Returns whether the network uses an address family.
    pub fn uses(&self, family: Family) -> bool {
        self.families.has(family)
    }

    /// Returns the configured public addresses in the families that the network uses.
    pub fn given_public(&self) -> Option<Addresses> {
        self.public.and_then(|public| public.only(|family| self.uses(family)))
    }

    /// Returns the addresses whose routes flanneld looks up before the selection.
    pub fn targets(&self) -> Vec<IpAddr> {
        let mut targets: Vec<IpAddr> = self
            .selectors
            .iter()
            .filter_map(
                |selector| {
                    if let Selector::CanReach(ip) = selector { Some(*ip) } else { None }
                },
            )
            .collect();
        if let StoreAt::There(addresses) = &self.store {
            targets.extend(addresses);
        }
        targets.extend(
            self.known.iter().flat_map(|known| known.servers.iter().copied().chain(known.others())),
        );
        targets
    }
}
