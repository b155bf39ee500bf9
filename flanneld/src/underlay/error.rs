//! Errors of the choice of the underlay interface.

use super::facts::ReachError;
use super::request::NameError;
use crate::error::joined;
use ipnet::IpNet;
use netstate::kernel::KernelError;
use options::{Pattern, Selector};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;
use types::{Addresses, Coded, Family, Problem};

/// The kernel does not respond to queries about this host.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error(
    "cannot read from the kernel (netlink): {0}; check that this process may open netlink sockets"
)]
#[code("host-unreadable")]
pub struct ReadError(#[from] KernelError);

/// Why flanneld cannot choose an underlay interface.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum SelectError {
    #[error("{0}")]
    #[code(of = _0)]
    Unread(#[from] ReadError),
    /// No flag names an interface.
    #[error("Failed to find any valid interface to use: {0}")]
    #[code("no-valid-interface")]
    #[parts(vec![Problem::of(_0)])]
    Unnamed(#[source] InterfaceError),
    /// None of the interfaces that flags name is suitable.
    #[error(
        "Failed to find interface to use that matches the interfaces and/or regexes provided: {}",
        joined(.0.iter().map(|(selector, why)| format!("{selector}: {why}")), "; ")
    )]
    #[code("no-named-interface")]
    #[parts(_0.iter().map(|(_, why)| Problem::of(why)).collect())]
    Named(Vec<(Selector, InterfaceError)>),
    #[error("{missing}; waited {} s for the interface (--iface-wait)", .waited.as_secs())]
    #[code("interface-late")]
    #[parts(vec![Problem::of(&**missing)])]
    Late {
        waited: Duration,
        #[source]
        missing: Box<SelectError>,
    },
}

impl SelectError {
    /// True if waiting can resolve the error, because an interface, an address or a route is missing.
    pub fn may_come(&self) -> bool {
        match self {
            Self::Unread(_) => false,
            Self::Unnamed(why) => why.may_come(),
            Self::Named(tried) => tried.iter().any(|(_, why)| why.may_come()),
            Self::Late { .. } => true,
        }
    }

    /// The addresses that this host shares with other nodes, each with a node's name, if they cause the error.
    pub fn shared(&self) -> Option<&BTreeMap<IpAddr, String>> {
        match self {
            Self::Unnamed(InterfaceError::Shared { addresses, .. }) => Some(addresses),
            Self::Late { missing, .. } => missing.shared(),
            _ => None,
        }
    }
}

/// Why a selector yields no interface. `host` describes the interfaces of this host that an operator can choose.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum InterfaceError {
    #[error("error looking up interface {name}: no such interface; this host has {host}")]
    #[code("interface-absent")]
    NoSuchName { name: String, host: String },
    #[error(
        "error looking up {}interface {address}: no interface with given {} found; this host has {host}",
        Family::from(*.address).pick("", "v6 "), Family::from(*.address).pick("IP", "IPv6")
    )]
    #[code("interface-address-absent")]
    NoOwner { address: IpAddr, host: String },
    /// IPv4 and IPv6 settings or routes lead to different interfaces. `route` and `remedy` may be empty.
    #[error("v6 {route}interface {v6} must be the same with v4 {route}interface {v4}{remedy}")]
    #[code("interfaces-differ")]
    Apart { route: &'static str, remedy: &'static str, v4: String, v6: String },
    #[error(
        "cannot choose an interface by --iface-can-reach: the lookup of the route to {target} failed: {why}"
    )]
    #[code("interface-target-unreachable")]
    #[parts(vec![Problem::of(why)])]
    OutOfReach {
        target: IpAddr,
        #[source]
        why: ReachError,
    },
    #[error("no interface that is up has a usable address inside {net}; this host has {host}")]
    #[code("interface-cidr-unmatched")]
    NoneInside { net: IpNet, host: String },
    #[error(
        "could not match pattern {pattern} to any of the available network interfaces ({host})"
    )]
    #[code("interface-regex-unmatched")]
    NoMatch { pattern: Pattern, host: String },
    #[error("the store's address is not known: {0}")]
    #[code("interface-store-unknown")]
    #[parts(vec![Problem::of(_0)])]
    StoreUnknown(#[source] NameError),
    #[error(
        "no route to the store ({})",
        joined(.0.iter().map(|(address, why)| format!("{address}: {why}")), ", ")
    )]
    #[code("interface-store-unreachable")]
    #[parts(_0.iter().map(|(_, why)| Problem::of(why)).collect())]
    StoreOutOfReach(Vec<(IpAddr, ReachError)>),
    /// `unusable` says why flanneld cannot use the default routes that exist.
    #[error(
        "failed to get default {}interface: unable to find default route{}; name the interface with --iface, this host has {host}",
        .family.pick("", "v6 "), in_brackets(.unusable, ", ")
    )]
    #[code("default-route-missing")]
    NoDefault { family: Family, unusable: Vec<String>, host: String },
    #[error("interface {interface} is down; bring it up with `ip link set {interface} up`")]
    #[code("interface-down")]
    Down { interface: String },
    /// The interface or address is flannel's or pods', and never joins nodes.
    #[error("{0}")]
    #[code("interface-of-pods")]
    Inward(String),
    /// The subnet that the store assigned to this node overlaps a network of this host.
    #[error("{0}")]
    #[code("podcidr-of-host")]
    Clash(String),
    #[error("failed to determine MTU for {interface} interface")]
    #[code("interface-mtu-unknown")]
    NoMtu { interface: String },
    /// `states` has the addresses of the family with the reasons why none is usable.
    #[error(
        "failed to find {family} address for interface {interface}: {}",
        if .states.is_empty() { "it has none" } else { .states.as_str() }
    )]
    #[code("interface-without-address")]
    NoAddress { family: Family, interface: String, states: String },
    #[error("the network uses no address family")]
    #[code("network-without-family")]
    NoFamily,
    /// `peer` is a server of the store or another node.
    #[error("no route to {peer} at {target}: {why}")]
    #[code("interface-peer-unreachable")]
    #[parts(vec![Problem::of(why)])]
    PeerOutOfReach {
        peer: &'static str,
        target: IpAddr,
        #[source]
        why: ReachError,
    },
    #[error(
        "this node stopped using {addresses} of {interface} less than ten minutes ago, because no peer responded"
    )]
    #[code("interface-given-up")]
    GivenUp { addresses: Addresses, interface: String },
    /// None of several candidates is usable.
    #[error("{}", joined(.0, "; "))]
    #[code("no-candidate-interface")]
    #[parts(_0.iter().map(Problem::of).collect())]
    Each(Vec<InterfaceError>),
    /// Each address has the name of another node that also has it. `whys` are the reasons against other candidates.
    #[error(
        "other Nodes also have the addresses of this host: {}. For example, every Vagrant machine has the address 10.0.2.15 on its NAT interface. Use --iface or --iface-cidr in the arguments of the DaemonSet to name the interface that connects the nodes. Alternatively, set the annotation node-public-ip of this Node or kubelet's --node-ip, or delete the Node that is gone; this host has {host}{}",
        joined(.addresses.iter().map(|(ip, node)| format!("{ip} (Node {node})")), ", "), in_brackets(.whys, "; ")
    )]
    #[code("interface-addresses-shared")]
    #[parts(whys.iter().map(Problem::of).collect())]
    Shared { addresses: BTreeMap<IpAddr, String>, host: String, whys: Vec<InterfaceError> },
}

impl InterfaceError {
    /// True if waiting can resolve this error.
    pub fn may_come(&self) -> bool {
        !matches!(self, Self::Apart { .. } | Self::NoMtu { .. } | Self::NoFamily)
    }
}

/// As ` (a, b)`, or empty without items.
fn in_brackets(items: &[impl Display], by: &str) -> String {
    if items.is_empty() { String::new() } else { format!(" ({})", joined(items, by)) }
}
