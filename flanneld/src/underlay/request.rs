//! Requirements on the interface.

use options::Selector;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use subnet_lease::manager::Claimant;
use types::{Addresses, Dual, Family, Problem};

/// The families that the network uses.
pub type Families = Dual<(), ()>;

/// From this host's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAt {
    /// Loopback, a unix socket or a directory.
    Here,
    /// On other hosts, at the addresses of the store's first endpoint.
    There(Vec<IpAddr>),
    /// The resolver cannot resolve the store's host name.
    Unknown(Problem),
}

/// Maximum number of published addresses, and of other addresses. flanneld looks up their routes one after the other,
/// so the number is small.
pub(super) const LOOKED_UP: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The families that the network uses.
    pub families: Families,
    /// The first selector that matches takes precedence. Empty if the user named no interface.
    pub selectors: Vec<Selector>,
    /// `--public-ip` and `--public-ipv6`, or the addresses that an operator chose in the store.
    pub public: Option<Addresses>,
    /// The interface that reaches the store may be the right one.
    pub store: StoreAt,
    /// `None` if the store does not list nodes.
    pub known: Option<KnownAddresses>,
}

/// From a store that lists the nodes (Kubernetes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAddresses {
    /// Addresses that this node published most recently.
    pub published: Vec<IpAddr>,
    /// The InternalIPs of this node's Node object.
    pub internal: Vec<IpAddr>,
    /// Whether an operator chose the published address. The node's own address then need not be unique.
    pub overwritten: bool,
    /// Addresses that other nodes publish or report as their own, each with the claiming node.
    pub taken: BTreeMap<IpAddr, Claimant>,
    /// Addresses of the store's servers.
    pub servers: Vec<IpAddr>,
    /// Addresses that this node stopped using a short time ago, because no peer had responded there.
    pub left: BTreeSet<IpAddr>,
}

impl KnownAddresses {
    /// Addresses of other nodes, which the right interface must reach. The published ones come first.
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
    pub fn uses(&self, family: Family) -> bool {
        self.families.has(family)
    }

    /// In the families that the network uses.
    pub fn given_public(&self) -> Option<Addresses> {
        self.public.and_then(|public| public.only(|family| self.uses(family)))
    }

    /// The addresses whose routes flanneld looks up before the selection.
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
