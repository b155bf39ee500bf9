//! The interface that carries packets between nodes: which one, and why; pure, over facts read elsewhere.

mod facts;
mod follow;
mod found;
mod hint;
pub mod read;
mod select;
#[cfg(test)]
mod tests;
mod trouble;

pub use facts::{Address, DefaultRoute, HostFacts, Interface, RouteAnswer};
pub use follow::followed;
pub use found::Found;
pub use hint::{interfaces_text, store_via_underlay, trap_hint};
pub use options::{Pattern, Selector};
pub use select::select;

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use subnet_lease::Dual;

/// The address families that the network uses.
pub type Families = Dual<(), ()>;

/// Where the store is, as far as routes are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAt {
    /// On this host: loopback, a unix socket, a directory.
    Here,
    /// At the first endpoint's addresses.
    There(Vec<IpAddr>),
    /// Its name could not be resolved, with the reason.
    Unknown(String),
}

/// What is wanted of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The families the network uses.
    pub families: Families,
    /// Ways of naming it, the first match wins; empty: nobody named one.
    pub selectors: Vec<Selector>,
    /// `--public-ip`.
    pub public_ip: Option<Ipv4Addr>,
    /// `--public-ipv6`.
    pub public_ipv6: Option<Ipv6Addr>,
    /// Where the store is.
    pub store: StoreAt,
}

impl Request {
    /// Whether IPv4 is used.
    fn v4(&self) -> bool {
        self.families.v4().is_some()
    }

    /// Whether IPv6 is used.
    fn v6(&self) -> bool {
        self.families.v6().is_some()
    }

    /// Addresses whose routes must be looked up before selecting.
    pub fn targets(&self) -> Vec<IpAddr> {
        let mut targets: Vec<IpAddr> =
            self.selectors.iter().filter_map(|selector| if let Selector::CanReach(ip) = selector { Some(*ip) } else { None }).collect();
        if let StoreAt::There(addresses) = &self.store {
            targets.extend(addresses);
        }
        targets
    }
}

/// How an address of a family was found, and so how another one is found when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The best of the interface.
    Best,
    /// This very one.
    Exactly,
    /// One that matches.
    Matching(Pattern),
    /// One inside this network.
    Inside(IpNet),
}

/// The interface that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The interface as backends need it.
    pub underlay: backends::Underlay,
    /// Why this one, to follow "it is": `named by --iface=eth1`, `the default route's`.
    pub why: String,
    /// Whether somebody named it by a flag or variable (`--iface*`, `--public-ip*`): then a node may take an unsigned lease of its address.
    pub named: bool,
    /// Whether it is merely the default route's.
    pub by_default: bool,
    /// `--public-ip` and `--public-ipv6`, which stay whatever the interface's addresses become.
    pub told: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// What is odd about the choice.
    pub warnings: Vec<String>,
    /// How its IPv4 address was found.
    pub rule_v4: Rule,
    /// How its IPv6 address was found.
    pub rule_v6: Rule,
}

/// Why no interface could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SelectError {
    /// Everything that was tried and why it failed.
    pub text: String,
    /// Whether waiting can help: an interface, an address or a route is absent.
    pub may_come: bool,
}
