//! The requirements on the interface.

use options::Selector;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use subnet_lease::Dual;

/// The address families that the network uses.
pub type Families = Dual<(), ()>;

/// Where the store is, as far as routing is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAt {
    /// On this host: loopback, a unix socket, a directory.
    Here,
    /// At the first endpoint's addresses.
    There(Vec<IpAddr>),
    /// Its name could not be resolved, for this reason.
    Unknown(String),
}

/// The requirements on the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The families the network uses.
    pub families: Families,
    /// Selectors of the interface; the first match wins. Empty if none was given.
    pub selectors: Vec<Selector>,
    /// `--public-ip`.
    pub public_ip: Option<Ipv4Addr>,
    /// `--public-ipv6`.
    pub public_ipv6: Option<Ipv6Addr>,
    /// Where the store is.
    pub store: StoreAt,
    /// What a store that knows its nodes says of this one.
    pub known: Option<KnownAddresses>,
}

/// What a store that knows its nodes says of this one's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAddresses {
    /// Addresses that are this node's, the best first, each with a phrase that says why.
    pub candidates: Vec<(IpAddr, &'static str)>,
    /// Addresses of other nodes, each with a node that has it.
    pub taken: BTreeMap<IpAddr, String>,
    /// Addresses of the store's servers.
    pub servers: Vec<IpAddr>,
}

impl Request {
    /// Whether IPv4 is used.
    pub fn v4(&self) -> bool {
        self.families.v4().is_some()
    }

    /// Whether IPv6 is used.
    pub fn v6(&self) -> bool {
        self.families.v6().is_some()
    }

    /// Addresses whose routes have to be looked up before the selection.
    pub fn targets(&self) -> Vec<IpAddr> {
        let mut targets: Vec<IpAddr> =
            self.selectors.iter().filter_map(|selector| if let Selector::CanReach(ip) = selector { Some(*ip) } else { None }).collect();
        if let StoreAt::There(addresses) = &self.store {
            targets.extend(addresses);
        }
        targets.extend(self.known.iter().flat_map(|known| &known.servers));
        targets
    }
}
