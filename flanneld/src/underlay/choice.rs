//! The chosen interface.

use super::facts::Leased;
use ipnet::IpNet;
use options::Pattern;
use std::net::IpAddr;
use types::Addresses;

/// How flanneld selects the interface's address of a family, at the start and after the addresses change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The best address of the interface.
    Best,
    /// Exactly this address.
    Exactly,
    /// An address that matches a pattern.
    Matching(Pattern),
    /// An address inside this network.
    Inside(IpNet),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// As input for the backend.
    pub underlay: backends::Underlay,
    /// Why flanneld chose the interface, as a phrase: `named by --iface=eth1`, `the default route's`.
    pub why: String,
    /// Flag that named the interface: `--iface=eth1`.
    pub flag: Option<String>,
    /// Whether a flag or environment variable named the interface (`--iface*`, `--public-ip*`). A node with a named
    /// interface may take over an unsigned lease that contains the node's address.
    pub named: bool,
    /// Whether flanneld chose the interface only because it holds the default route.
    pub by_default: bool,
    /// `--public-ip` and `--public-ipv6`, which stay fixed when the interface's addresses change.
    pub given_public: Option<Addresses>,
    /// By these, flanneld recognises interfaces of pods.
    pub leased: Leased,
    /// For the log.
    pub warnings: Vec<String>,
    /// The addresses of `underlay`, each with the rule for another address of the family.
    pub rules: Vec<(IpAddr, Rule)>,
}
