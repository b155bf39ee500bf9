//! Reasons why flanneld cannot choose an underlay interface.

use super::facts::Unreachable;
use super::request::NoName;
use ipnet::IpNet;
use netstate::host::Address;
use netstate::kernel::KernelError;
use options::{Pattern, Selector};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use types::problem::Coded;
use types::{Addresses, Family, Problem};

/// Error when the kernel does not respond to queries about this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError(KernelError);

impl From<KernelError> for ReadError {
    fn from(cause: KernelError) -> Self {
        Self(cause)
    }
}

impl Coded for ReadError {
    fn code(&self) -> &'static str {
        "host-unreadable"
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot read from the kernel (netlink): {}; check that this process may open netlink sockets",
            self.0
        )
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Error when flanneld cannot choose an underlay interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectError {
    /// Failure to read the kernel's interfaces, addresses or routes.
    Unread(ReadError),
    /// Lack of a suitable interface, if no flag names an interface.
    Unnamed(Unfit),
    /// Lack of a suitable interface among the interfaces that flags name.
    Named(Vec<(Selector, Unfit)>),
    /// A wait for an interface that has timed out.
    Late {
        /// Duration of the wait.
        waited: Duration,
        /// Reason why flanneld still cannot choose an interface.
        missing: Box<SelectError>,
    },
}

impl SelectError {
    /// Returns whether waiting can resolve the error, because an interface, an address or a route is missing.
    pub fn may_come(&self) -> bool {
        match self {
            Self::Unread(_) => false,
            Self::Unnamed(why) => why.may_come(),
            Self::Named(tried) => tried.iter().any(|(_, why)| why.may_come()),
            Self::Late { .. } => true,
        }
    }

    /// Returns the addresses that this host shares with other nodes, each with a node's name, if shared addresses
    /// cause the error.
    pub fn shared(&self) -> Option<&BTreeMap<IpAddr, String>> {
        match self {
            Self::Unnamed(Unfit::Shared { addresses, .. }) => Some(addresses),
            Self::Late { missing, .. } => missing.shared(),
            _ => None,
        }
    }
}

impl From<ReadError> for SelectError {
    fn from(error: ReadError) -> Self {
        Self::Unread(error)
    }
}

impl Coded for SelectError {
    fn code(&self) -> &'static str {
        match self {
            Self::Unread(error) => error.code(),
            Self::Unnamed(_) => "no-valid-interface",
            Self::Named(_) => "no-named-interface",
            Self::Late { .. } => "interface-late",
        }
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            Self::Unread(_) => Vec::new(),
            Self::Unnamed(why) => vec![Problem::of(why)],
            Self::Named(tried) => tried.iter().map(|(_, why)| Problem::of(why)).collect(),
            Self::Late { missing, .. } => vec![Problem::of(&**missing)],
        }
    }
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread(error) => error.fmt(f),
            Self::Unnamed(why) => write!(f, "Failed to find any valid interface to use: {why}"),
            Self::Named(tried) => {
                let tried = tried.iter().map(|(selector, why)| format!("{selector}: {why}"));
                write!(
                    f,
                    "Failed to find interface to use that matches the interfaces and/or regexes provided: {}",
                    joined(tried, "; ")
                )
            }
            Self::Late { waited, missing } => write!(
                f,
                "{missing}; waited {} s for the interface (--iface-wait)",
                waited.as_secs()
            ),
        }
    }
}

impl std::error::Error for SelectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unread(error) => Some(error),
            Self::Unnamed(why) => Some(why),
            Self::Named(_) => None,
            Self::Late { missing, .. } => Some(missing),
        }
    }
}

/// Reason why a selector yields no interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A name that no interface of this host has.
    NoSuchName {
        /// Name in the selector.
        name: String,
        /// Interfaces of this host.
        host: Host,
    },
    /// An address that this host does not have.
    NoOwner {
        /// Address in the selector.
        address: IpAddr,
        /// Interfaces of this host.
        host: Host,
    },
    /// IPv4 and IPv6 settings or routes that lead to different interfaces.
    Apart {
        /// Settings or routes that chose the two interfaces.
        by: Apart,
        /// Interface that flanneld chose for IPv4.
        v4: String,
        /// Interface that flanneld chose for IPv6.
        v6: String,
    },
    /// Lack of an interface that leads to the address of `--iface-can-reach`.
    OutOfReach {
        /// Address in the flag `--iface-can-reach`.
        target: IpAddr,
        /// Result of the route lookup.
        why: Unreachable,
    },
    /// Lack of an interface with an address in the network of `--iface-cidr`.
    NoneInside {
        /// Network in the flag `--iface-cidr`.
        net: IpNet,
        /// Interfaces of this host.
        host: Host,
    },
    /// A pattern in `--iface-regex` that no interface matches.
    NoMatch {
        /// Pattern in the flag `--iface-regex`.
        pattern: Pattern,
        /// Interfaces of this host.
        host: Host,
    },
    /// A name of the store that this node cannot resolve.
    StoreUnknown(NoName),
    /// Lack of an interface that leads to an address of the store.
    StoreOutOfReach(Vec<(IpAddr, Unreachable)>),
    /// Lack of a usable default route in an address family.
    NoDefault {
        /// Address family that has no usable default route.
        family: Family,
        /// Default routes that flanneld cannot use.
        passed_over: Vec<Useless>,
        /// Interfaces of this host.
        host: Host,
    },
    /// An interface that is down.
    Down {
        /// Name of the interface.
        interface: String,
    },
    /// An interface or an address that is flannel's or pods', and never joins nodes: the reason.
    Inward(String),
    /// A subnet that the store assigned to this node, and that overlaps a network of this host: the reason.
    Clash(String),
    /// An interface without an MTU.
    NoMtu {
        /// Name of the interface.
        interface: String,
    },
    /// An interface without a usable address in an address family.
    NoAddress {
        /// Address family in which the interface has no usable address.
        family: Family,
        /// Name of the interface.
        interface: String,
        /// The interface's addresses in `family`, none of which is usable.
        addresses: Vec<Address>,
    },
    /// A network that uses no address family.
    NoFamily,
    /// Lack of an interface that leads to a server of the store, or to another node.
    PeerOutOfReach {
        /// Whether the target is a server of the store or another node.
        peer: Peer,
        /// Address of the target.
        target: IpAddr,
        /// Result of the route lookup.
        why: Unreachable,
    },
    /// Addresses that this node stopped using a short time ago.
    GivenUp {
        /// Addresses that this node stopped using.
        addresses: Addresses,
        /// Interface that has the addresses.
        interface: String,
    },
    /// Reasons why flanneld cannot use any of several candidates.
    Each(Vec<Unfit>),
    /// Usable addresses of this host, all of which other nodes also have.
    Shared {
        /// The shared addresses, each with the name of another node that has the address.
        addresses: BTreeMap<IpAddr, String>,
        /// Interfaces of this host.
        host: Host,
        /// Reasons why flanneld cannot use other candidates.
        whys: Vec<Unfit>,
    },
}

impl Unfit {
    /// Returns whether waiting can resolve this reason.
    pub fn may_come(&self) -> bool {
        !matches!(self, Self::Apart { .. } | Self::NoMtu { .. } | Self::NoFamily)
    }
}

impl Coded for Unfit {
    fn code(&self) -> &'static str {
        match self {
            Self::NoSuchName { .. } => "interface-absent",
            Self::NoOwner { .. } => "interface-address-absent",
            Self::Apart { .. } => "interfaces-differ",
            Self::OutOfReach { .. } => "interface-target-unreachable",
            Self::NoneInside { .. } => "interface-cidr-unmatched",
            Self::NoMatch { .. } => "interface-regex-unmatched",
            Self::StoreUnknown(_) => "interface-store-unknown",
            Self::StoreOutOfReach(_) => "interface-store-unreachable",
            Self::NoDefault { .. } => "default-route-missing",
            Self::Down { .. } => "interface-down",
            Self::Inward(_) => "interface-of-pods",
            Self::Clash(_) => "podcidr-of-host",
            Self::NoMtu { .. } => "interface-mtu-unknown",
            Self::NoAddress { .. } => "interface-without-address",
            Self::NoFamily => "network-without-family",
            Self::PeerOutOfReach { .. } => "interface-peer-unreachable",
            Self::GivenUp { .. } => "interface-given-up",
            Self::Each(_) => "no-candidate-interface",
            Self::Shared { .. } => "interface-addresses-shared",
        }
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            Self::OutOfReach { why, .. } | Self::PeerOutOfReach { why, .. } => {
                vec![Problem::of(why)]
            }
            Self::StoreUnknown(why) => vec![Problem::of(why)],
            Self::StoreOutOfReach(whys) => whys.iter().map(|(_, why)| Problem::of(why)).collect(),
            Self::Each(whys) | Self::Shared { whys, .. } => whys.iter().map(Problem::of).collect(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchName { name, host } => write!(
                f,
                "error looking up interface {name}: no such interface; this host has {host}"
            ),
            Self::NoOwner { address, host } => {
                let (v, family) = Family::from(*address).pick(("", "IP"), ("v6 ", "IPv6"));
                write!(
                    f,
                    "error looking up {v}interface {address}: no interface with given {family} found; this host has {host}"
                )
            }
            Self::Apart { by, v4, v6 } => write_apart(f, *by, v4, v6),
            Self::OutOfReach { target, why } => write!(
                f,
                "cannot choose an interface by --iface-can-reach: the lookup of the route to {target} failed: {why}"
            ),
            Self::NoneInside { net, host } => write!(
                f,
                "no interface that is up has a usable address inside {net}; this host has {host}"
            ),
            Self::NoMatch { pattern, host } => write!(
                f,
                "could not match pattern {pattern} to any of the available network interfaces ({host})"
            ),
            Self::StoreUnknown(why) => write!(f, "the store's address is not known: {why}"),
            Self::StoreOutOfReach(whys) => {
                write!(
                    f,
                    "no route to the store ({})",
                    joined(whys.iter().map(|(address, why)| format!("{address}: {why}")), ", ")
                )
            }
            Self::NoDefault { family, passed_over, host } => {
                write_no_default(f, *family, passed_over, host)
            }
            Self::Down { interface } => write!(
                f,
                "interface {interface} is down; bring it up with `ip link set {interface} up`"
            ),
            Self::Inward(why) | Self::Clash(why) => f.write_str(why),
            Self::NoMtu { interface } => {
                write!(f, "failed to determine MTU for {interface} interface")
            }
            Self::NoAddress { family, interface, addresses } => {
                write_no_address(f, *family, interface, addresses)
            }
            Self::NoFamily => f.write_str("the network uses no address family"),
            Self::PeerOutOfReach { peer, target, why } => {
                write!(f, "no route to {peer} at {target}: {why}")
            }
            Self::GivenUp { addresses, interface } => {
                write!(
                    f,
                    "this node stopped using {addresses} of {interface} less than ten minutes ago, because no peer responded"
                )
            }
            Self::Each(whys) => f.write_str(&joined(whys, "; ")),
            Self::Shared { addresses, host, whys } => write_shared(f, addresses, host, whys),
        }
    }
}

fn write_apart(f: &mut fmt::Formatter<'_>, by: Apart, v4: &str, v6: &str) -> fmt::Result {
    let (route, remedy) = match by {
        Apart::Addresses => ("", ""),
        Apart::PublicAddresses => {
            ("", ": --public-ip and --public-ipv6 belong to these two interfaces")
        }
        Apart::DefaultRoutes => ("default route ", "; name the interface with --iface"),
    };
    write!(f, "v6 {route}interface {v6} must be the same with v4 {route}interface {v4}{remedy}")
}

fn write_no_default(
    f: &mut fmt::Formatter<'_>,
    family: Family,
    passed_over: &[Useless],
    host: &Host,
) -> fmt::Result {
    let v = family.pick("", "v6 ");
    let detail = if passed_over.is_empty() {
        String::new()
    } else {
        format!(" ({})", joined(passed_over, ", "))
    };
    write!(
        f,
        "failed to get default {v}interface: unable to find default route{detail}; name the interface with --iface, this host has {host}"
    )
}

fn write_no_address(
    f: &mut fmt::Formatter<'_>,
    family: Family,
    interface: &str,
    addresses: &[Address],
) -> fmt::Result {
    let states = joined(
        addresses.iter().map(|address| format!("{}: {}", address.ip(), address.state())),
        ", ",
    );
    let detail = if states.is_empty() { "it has none" } else { &states };
    write!(f, "failed to find {family} address for interface {interface}: {detail}")
}

fn write_shared(
    f: &mut fmt::Formatter<'_>,
    addresses: &BTreeMap<IpAddr, String>,
    host: &Host,
    whys: &[Unfit],
) -> fmt::Result {
    let shared = joined(addresses.iter().map(|(ip, node)| format!("{ip} (Node {node})")), ", ");
    let whys = if whys.is_empty() { String::new() } else { format!(" ({})", joined(whys, "; ")) };
    write!(
        f,
        "other Nodes also have the addresses of this host: {shared}. For example, every Vagrant machine has the address 10.0.2.15 on its NAT interface. Use --iface or --iface-cidr in the arguments of the DaemonSet to name the interface that connects the nodes. Alternatively, set the annotation node-public-ip of this Node or kubelet's --node-ip, or delete the Node that is gone; this host has {host}{whys}"
    )
}

impl std::error::Error for Unfit {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::OutOfReach { why, .. } | Self::PeerOutOfReach { why, .. } => Some(why),
            Self::StoreUnknown(why) => Some(why),
            _ => None,
        }
    }
}

/// Settings or routes that chose a different interface for each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// The address that names the interface, and `--public-ipv6`.
    Addresses,
    /// `--public-ip` and `--public-ipv6`.
    PublicAddresses,
    /// The default routes.
    DefaultRoutes,
}

/// Kind of host by which flanneld finds the right interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A server of the store.
    Server,
    /// Another node.
    Node,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "the API server",
            Self::Node => "another node",
        })
    }
}

/// Reason why flanneld cannot use a default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Useless {
    /// A route that rejects packets.
    Rejects {
        /// Metric of the route.
        metric: u32,
    },
    /// A route whose interface is unknown.
    Nowhere {
        /// Metric of the route.
        metric: u32,
    },
    /// A route to the loopback interface, or to an interface of pods.
    Inward {
        /// Metric of the route.
        metric: u32,
        /// Name of the interface.
        interface: String,
    },
    /// A route whose interface is down.
    Down {
        /// Name of the interface.
        interface: String,
    },
}

impl fmt::Display for Useless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejects { metric } => {
                write!(f, "the default route with metric {metric} rejects packets")
            }
            Self::Nowhere { metric } => write!(
                f,
                "found default route of metric {metric} but could not determine interface"
            ),
            Self::Inward { metric, interface } => {
                write!(f, "the default route with metric {metric} leads to {interface}")
            }
            Self::Down { interface } => write!(f, "{interface} is down"),
        }
    }
}

/// The interfaces of this host that an operator can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(pub Vec<Choosable>);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str("no interface but lo")
        } else {
            f.write_str(&joined(&self.0, ", "))
        }
    }
}

/// An interface that an operator can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choosable {
    /// Name of the interface.
    pub name: String,
    /// Usable addresses of the interface.
    pub addresses: Vec<IpAddr>,
    /// Whether the interface is up.
    pub up: bool,
}

impl fmt::Display for Choosable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = if self.addresses.is_empty() {
            "no usable address".to_owned()
        } else {
            joined(&self.addresses, ", ")
        };
        let down = if self.up { "" } else { ", down" };
        write!(f, "{}:[{addresses}{down}]", self.name)
    }
}

fn joined(items: impl IntoIterator<Item: ToString>, by: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(by)
}
