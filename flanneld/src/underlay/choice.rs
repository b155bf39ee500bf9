//! The chosen interface.

use ipnet::IpNet;
use options::Pattern;
use types::Addresses;

/// Rule by which flanneld finds the address of a family, and the replacement when the address changes.
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
    /// The interface in the form that backends need.
    pub underlay: backends::Underlay,
    /// Reason for the choice, as a phrase: `named by --iface=eth1`, `the default route's`.
    pub why: String,
    /// Flag that named the interface: `--iface=eth1`.
    pub flag: Option<String>,
    /// Whether a flag or environment variable named the interface (`--iface*`, `--public-ip*`). A node with a
    /// named interface may take over an unsigned lease that has the node's address.
    pub named: bool,
    /// Whether flanneld chose the interface only because it holds the default route.
    pub by_default: bool,
    /// `--public-ip` and `--public-ipv6`, which stay fixed when the interface's addresses change.
    pub given_public: Option<Addresses>,
    /// Warnings about the choice, for the log.
    pub warnings: Vec<String>,
    /// Rule by which flanneld found the IPv4 address of the interface.
    pub rule_v4: Rule,
    /// Rule by which flanneld found the IPv6 address of the interface.
    pub rule_v6: Rule,
}
