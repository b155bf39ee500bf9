//! The chosen interface.

use super::facts::Leased;
use ipnet::IpNet;
use options::Pattern;
use std::net::IpAddr;
use types::Addresses;

/// Rule by which flanneld selects the interface's address of a family, at the start and after the interface's
/// addresses change.
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

/// A chosen underlay interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The chosen interface, as input for the backend.
    pub underlay: backends::Underlay,
    /// Reason why flanneld chose the interface, as a phrase: `named by --iface=eth1`, `the default route's`.
    pub why: String,
    /// Flag that named the interface: `--iface=eth1`.
    pub flag: Option<String>,
    /// Whether a flag or environment variable named the interface (`--iface*`, `--public-ip*`). A node with a
    /// named interface may take over an unsigned lease that contains the node's address.
    pub named: bool,
    /// Whether flanneld chose the interface only because it holds the default route.
    pub by_default: bool,
    /// `--public-ip` and `--public-ipv6`, which stay fixed when the interface's addresses change.
    pub given_public: Option<Addresses>,
    /// This node's subnets and addresses, by which flanneld recognises interfaces of pods.
    pub leased: Leased,
    /// Warnings about the choice, for the log.
    pub warnings: Vec<String>,
    /// The addresses of `underlay`, each with the rule by which flanneld selects another address of the family.
    pub rules: Vec<(IpAddr, Rule)>,
}
