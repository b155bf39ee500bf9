//! What was chosen, and why not.

use ipnet::IpNet;
use options::Pattern;
use std::net::{Ipv4Addr, Ipv6Addr};

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
