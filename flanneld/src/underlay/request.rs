//! Requirements on the interface.

use options::Selector;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use subnet_lease::manager::Claimant;
use types::Dual;
use types::problem::{Coded, text};
use types::{Addresses, Family};

/// Address families that the network uses.
pub type Families = Dual<(), ()>;

/// Location of the store, as far as routing is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAt {
    /// Store on this host: loopback, a unix socket or a directory.
    Here,
    /// Store at the addresses of its first endpoint.
    There(Vec<IpAddr>),
    /// Unknown location, because the resolver cannot resolve the store's name.
    Unknown(NoName),
}

/// Error for a store name that the resolver cannot resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoName {
    /// Host name that cannot be resolved.
    pub host: String,
    /// Message of the resolver; `None` if no name server responds.
    pub resolver: Option<String>,
}

impl Coded for NoName {
    fn code(&self) -> &'static str {
        match self.resolver {
            Some(_) => "store-name-unresolved",
            None => "name-server-silent",
        }
    }
}

impl fmt::Display for NoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| match &self.resolver {
            Some(words) => write!(f, "{}: {words}", self.host),
            None => write!(f, "{}: the name server does not respond", self.host),
        })
    }
}

impl std::error::Error for NoName {}

/// Requirements on the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address families that the network uses.
    pub families: Families,
    /// Selectors of the interface; the first match wins. The list is empty if the request names no selector.
    pub selectors: Vec<Selector>,
    /// `--public-ip` and `--public-ipv6`, or what an operator chose in the store.
    pub public: Option<Addresses>,
    /// Location of the store.
    pub store: StoreAt,
    /// This node's addresses in a store that knows its nodes.
    pub known: Option<KnownAddresses>,
}

/// Addresses of this node and of others, from a store that knows its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAddresses {
    /// Addresses that this node published last.
    pub published: Vec<IpAddr>,
    /// Addresses of this node that the store has from another source: the InternalIPs of the Node.
    pub internal: Vec<IpAddr>,
    /// Whether an operator chose the published address. If an operator chose the address, each other node may
    /// have this node's own address in a separate network.
    pub overwritten: bool,
    /// Addresses that other nodes claim.
    pub taken: BTreeMap<IpAddr, Claimant>,
    /// Addresses of the store's servers.
    pub servers: Vec<IpAddr>,
    /// Addresses that this node stopped using a short time ago, because no peer responded there.
    pub left: BTreeSet<IpAddr>,
}

impl KnownAddresses {
    /// Returns addresses of other nodes that the right interface reaches: first the addresses that nodes publish, then other addresses.
    pub fn others(&self) -> impl Iterator<Item = IpAddr> {
        /// Maximum number of addresses to look up, separately for published addresses and for other
        /// addresses. flanneld looks up the routes one after the other.
        const LOOKED_UP: usize = 8;
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
    /// Returns whether the network uses a family.
    pub fn uses(&self, family: Family) -> bool {
        family.pick(self.v4(), self.v6())
    }

    /// Returns the configured public addresses, of the families that the network uses.
    pub fn given_public(&self) -> Option<Addresses> {
        self.public
            .and_then(|public| public.only(|family| self.uses(family)))
    }

    /// Returns whether the network uses IPv4.
    pub fn v4(&self) -> bool {
        self.families.v4().is_some()
    }

    /// Returns whether the network uses IPv6.
    pub fn v6(&self) -> bool {
        self.families.v6().is_some()
    }

    /// Returns the addresses whose routes flanneld looks up before the selection.
    pub fn targets(&self) -> Vec<IpAddr> {
        let mut targets: Vec<IpAddr> = self
            .selectors
            .iter()
            .filter_map(|selector| {
                if let Selector::CanReach(ip) = selector {
                    Some(*ip)
                } else {
                    None
                }
            })
            .collect();
        if let StoreAt::There(addresses) = &self.store {
            targets.extend(addresses);
        }
        targets.extend(
            self.known
                .iter()
                .flat_map(|known| known.servers.iter().copied().chain(known.others())),
        );
        targets
    }
}
