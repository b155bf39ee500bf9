//! Failures between this program and the kernel, as values: the request and the reason.

use crate::names::LinkName;
use crate::object::Key;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use types::problem::{PortPurpose, text};
use types::{Coded, Detail, Errno, Problem};

/// The kind of a failure, as far as callers act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The kernel refuses this object only: a foreign object is in its place, or the kernel cannot use its address.
    Conflict,
    /// The kernel does not support the operation.
    Unsupported,
    /// Any other failure. The operation is retried.
    Other,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError {
    /// The attempted operation, as an infinitive for messages.
    pub verb: &'static str,
    /// The object of the operation.
    pub key: Key,
    /// Decides whether the failure concerns one peer, and whether it is retried.
    pub kind: FailureKind,
    /// Why, with the remedy.
    pub why: Failure,
}

/// A failed read of or query to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// The request, named in the error text.
    pub what: Request,
    /// Why, with the remedy.
    pub why: Failure,
}

/// A request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// To open a netlink socket.
    Open,
    /// To subscribe to notifications.
    Subscribe,
    /// A dump of all objects of a kind.
    List(Listed),
    /// Whether it supports vxlan.
    FindVxlan,
    /// Whether it supports WireGuard.
    FindWireguard,
    /// To change WireGuard's interfaces.
    ConfigureWireguard,
    /// A route lookup for a destination address.
    Lookup(IpAddr),
    /// A port of the pods' bridge for probes.
    MakePort,
    /// An operation without which nothing works.
    Operation {
        /// The operation, as an infinitive for messages.
        verb: &'static str,
        /// The object of the operation.
        key: Box<Key>,
    },
    /// Its state, to compare it with the desired state.
    Compare,
    /// Its state, for a kernel audit.
    Look,
}

/// Kinds of objects that one netlink dump lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Interfaces.
    Links,
    /// Addresses.
    Addresses,
    /// Neighbours.
    Neighbours,
    /// FDB entries.
    Fdb,
    /// Neighbours or FDB entries.
    Entries,
    /// Routes.
    Routes,
    /// Rules of policy routing.
    Rules,
    /// Peers of WireGuard.
    WireguardPeers,
}

/// Why the kernel did not do what was asked of it, or was not asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The kernel answered with an errno.
    Refused {
        /// The errno of the answer.
        errno: Errno,
        /// Its own words (extended acknowledgement). Empty if it said none.
        words: String,
        /// The likely cause, given the operation.
        cause: Cause,
    },
    /// The kernel did not answer before the timeout.
    Silent,
    /// It did not answer to an operation. Whether it took effect is unknown.
    Unanswered,
    /// Its objects changed while they were listed, so many times in a row.
    Interrupted(u32),
    /// Its answer has no route.
    NoRoute,
    /// The module that has to answer is not loaded.
    NotLoaded {
        /// Name of the kernel module.
        module: &'static str,
    },
    /// The interface of the object does not exist.
    NoInterface(LinkName),
    /// The interface disappeared during the operation.
    InterfaceGone,
    /// An interface of another kind has our name.
    NameTaken {
        /// Name of the interface.
        link: LinkName,
        /// Its kind, as the kernel names it.
        kind: String,
    },
    /// Interfaces of this kind are made by the program that opens them.
    OpenedByProgram {
        /// The kind, as the kernel names it.
        kind: String,
    },
    /// The kernel could not be read so far.
    Unread,
    /// The network is being stopped.
    Stopping,
    /// The packet engine of the device has this problem.
    Userspace(Box<Problem>),
}

/// The likely cause of a refusal, given the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing more is known than what the kernel says.
    Unknown,
    /// This process may not do it.
    Forbidden,
    /// IPv6 is disabled on the interface.
    Ipv6Disabled(LinkName),
    /// A foreign route is in the place of ours.
    RouteExists(IpNet),
    /// A peer is not on the network of the underlay.
    NotOnLink {
        /// Public address of the peer, the gateway of its route.
        via: IpAddr,
        /// The underlay interface.
        dev: LinkName,
    },
    /// A gateway is not reached over its interface.
    Unreachable {
        /// Address of the gateway.
        via: IpAddr,
        /// Interface of the route.
        dev: LinkName,
    },
    /// The kernel does not know the kind of the interface.
    ModuleMissing {
        /// Name of the interface.
        link: LinkName,
        /// Name of the kernel module.
        module: String,
    },
    /// Another IPIP interface has the same ends.
    SameEnds(LinkName),
    /// Another process or interface has the UDP port.
    PortTaken {
        /// The interface that needs it.
        link: LinkName,
        /// UDP port that is in use.
        port: u16,
        /// Whether WireGuard needs it; otherwise vxlan does.
        wireguard: bool,
    },
    /// Another vxlan interface has the VNI and the UDP port, or another program the port.
    TunnelExists(LinkName),
}

impl Failure {
    /// The kernel refused, and nothing more is known.
    pub(crate) fn refused(errno: impl Into<Errno>) -> Self {
        Failure::Refused {
            errno: errno.into(),
            words: String::new(),
            cause: Cause::Unknown,
        }
    }

    /// The packet engine of the device has this problem.
    pub fn userspace(problem: impl Into<Problem>) -> Self {
        Failure::Userspace(Box::new(problem.into()))
    }
}

impl Coded for Failure {
    fn code(&self) -> &'static str {
        match self {
            Failure::Refused { cause, .. } => cause.code(),
            Failure::Silent | Failure::Unanswered => "kernel-silent",
            Failure::Interrupted(_) => "kernel-changing",
            Failure::NoRoute => "kernel-answer-unusable",
            Failure::NotLoaded { .. } => "module-missing",
            Failure::NoInterface(_) | Failure::InterfaceGone => "interface-missing",
            Failure::NameTaken { .. } => "interface-name-taken",
            Failure::OpenedByProgram { .. } => "interface-not-creatable",
            Failure::Unread => "kernel-unread",
            Failure::Stopping => "network-stopping",
            // The code of a value that comes from this process is one of ours.
            Failure::Userspace(problem) => match &problem.code {
                std::borrow::Cow::Borrowed(code) => code,
                std::borrow::Cow::Owned(_) => "userspace-device-failed",
            },
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Failure::Refused {
                cause: Cause::ModuleMissing { module, .. },
                ..
            } => Detail::ModuleMissing {
                name: module.clone(),
            },
            Failure::Refused {
                cause: Cause::PortTaken { port, .. },
                ..
            } => Detail::PortTaken {
                number: *port,
                udp: true,
                purpose: PortPurpose::Tunnel,
            },
            Failure::NotLoaded { module } => Detail::ModuleMissing {
                name: (*module).to_owned(),
            },
            Failure::Userspace(problem) => problem.detail.clone(),
            _ => Detail::None,
        }
    }
}

impl Cause {
    fn code(&self) -> &'static str {
        match self {
            Cause::Unknown => "kernel-refused",
            Cause::Forbidden => "kernel-forbidden",
            Cause::Ipv6Disabled(_) => "ipv6-disabled",
            Cause::RouteExists(_) => "route-exists",
            Cause::NotOnLink { .. } => "peer-not-on-link",
            Cause::Unreachable { .. } => "gateway-unreachable",
            Cause::ModuleMissing { .. } => "module-missing",
            Cause::SameEnds(_) | Cause::TunnelExists(_) => "tunnel-exists",
            Cause::PortTaken { .. } => "tunnel-port-taken",
        }
    }

    /// Writes what follows the kernel's words.
    fn remedy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Unknown => Ok(()),
            Cause::Forbidden => f.write_str("; CAP_NET_ADMIN is needed in this network namespace"),
            Cause::Ipv6Disabled(name) => {
                write!(
                    f,
                    "; IPv6 is disabled on this interface: sysctl -w net.ipv6.conf.{name}.disable_ipv6=0, and the same for default"
                )
            }
            Cause::RouteExists(net) => write!(
                f,
                "; another route to {net} already exists: find it with `ip route show {net}` and remove it (one by cni0 comes from an address of \
                 that bridge: `ip address del` it, and restart the pods of that subnet)"
            ),
            Cause::NotOnLink { via, dev } => write!(
                f,
                "; the peer's address {via} is not on the network of {dev}: host-gw and DirectRouting need a direct link, other peers are not affected"
            ),
            Cause::Unreachable { via, dev } => write!(
                f,
                "; {via} must be reachable over {dev}: check that it is up and that no other route to {via} takes precedence (ip route get {via})"
            ),
            Cause::ModuleMissing { link, module } => write!(
                f,
                "; {link} needs the kernel module {module} (modprobe {module}; some distributions package it separately, as linux-modules-extra-$(uname -r) or kernel-modules-extra)"
            ),
            Cause::SameEnds(name) => write!(
                f,
                "; an interface {name}, or another IPIP interface with the same addresses, exists: find it with `ip -d link show type ipip`, and delete it"
            ),
            Cause::PortTaken {
                link,
                port,
                wireguard: true,
            } => write!(
                f,
                "; another WireGuard interface or program uses UDP port {port}, which {link} needs: find it with `wg show all listen-port` and `ss -ulpn`, or set another ListenPort in the Backend, on all nodes"
            ),
            Cause::PortTaken {
                link,
                port,
                wireguard: false,
            } => write!(
                f,
                "; another program uses UDP port {port}, which {link} needs: find it with `ss -ulpn sport = :{port}`, or set another Port in the Backend, on all nodes"
            ),
            Cause::TunnelExists(name) => write!(
                f,
                "; another vxlan interface or program uses the VNI and UDP port of {name}: find it with `ip -d link show type vxlan` and `ss -ulpn`, or set another Port or VNI in the Backend"
            ),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| match self {
            Failure::Refused {
                errno,
                words,
                cause,
            } => {
                write!(f, "{errno}")?;
                if !words.is_empty() {
                    write!(f, ": {words}")?;
                }
                cause.remedy(f)
            }
            Failure::Silent => f.write_str("the kernel does not answer"),
            Failure::Unanswered => {
                f.write_str("the kernel did not answer; the next pass checks the result")
            }
            Failure::Interrupted(times) => {
                write!(f, "interrupted by changes {times} times in a row")
            }
            Failure::NoRoute => f.write_str("the kernel's answer has no route"),
            Failure::NotLoaded { module } => write!(
                f,
                "the kernel module {module} is not loaded (modprobe {module})"
            ),
            Failure::NoInterface(name) => write!(f, "interface {name} does not exist"),
            Failure::InterfaceGone => f.write_str("the interface no longer exists"),
            Failure::NameTaken { link, kind } => {
                write!(
                    f,
                    "an interface of this name and of kind {kind} already exists: rename or delete it (ip link delete {link})"
                )
            }
            Failure::OpenedByProgram { kind } => {
                write!(f, "a {kind} device is created by the program that opens it")
            }
            Failure::Unread => f.write_str("it could not be read so far"),
            Failure::Stopping => f.write_str("the network is being stopped"),
            Failure::Userspace(problem) => problem.fmt(f),
        })
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Listed::Links => "network interfaces",
            Listed::Addresses => "addresses",
            Listed::Neighbours => "neighbours",
            Listed::Fdb => "FDB entries",
            Listed::Entries => "neighbours and FDB entries",
            Listed::Routes => "routes",
            Listed::Rules => "rules of policy routing",
            Listed::WireguardPeers => "WireGuard peers",
        })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Open => f.write_str("open a netlink socket"),
            Request::Subscribe => f.write_str("subscribe to kernel notifications"),
            Request::List(listed) => write!(f, "list {listed}"),
            Request::FindVxlan => f.write_str("check for vxlan support"),
            Request::FindWireguard => f.write_str("ask for WireGuard"),
            Request::ConfigureWireguard => f.write_str("configure WireGuard"),
            Request::Lookup(to) => write!(f, "look up the route to {to}"),
            Request::MakePort => f.write_str("make a port of the pods' bridge for probes"),
            Request::Operation { verb, key } => write!(f, "cannot {verb} {key}"),
            Request::Compare => f.write_str("compare with the kernel"),
            Request::Look => f.write_str("look at the kernel"),
        }
    }
}

impl Coded for KernelError {
    fn code(&self) -> &'static str {
        self.why.code()
    }

    fn detail(&self) -> Detail {
        self.why.detail()
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| write!(f, "{}: {}", self.what, self.why))
    }
}

impl std::error::Error for KernelError {}

impl Coded for OpError {
    fn code(&self) -> &'static str {
        self.why.code()
    }

    fn detail(&self) -> Detail {
        self.why.detail()
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| {
            write!(f, "cannot {} {}: {}", self.verb, self.key, self.why)
        })
    }
}

impl std::error::Error for OpError {}

impl From<OpError> for KernelError {
    fn from(error: OpError) -> Self {
        KernelError {
            what: Request::Operation {
                verb: error.verb,
                key: Box::new(error.key),
            },
            why: error.why,
        }
    }
}
