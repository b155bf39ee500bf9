//! Failed requests to the kernel as values: the request and the reason.

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
    /// The kernel refuses only this object, because a foreign object conflicts with it or the kernel cannot use its address.
    Conflict,
    /// The kernel does not support the operation.
    Unsupported,
    /// Any other failure. The reconciler retries the operation.
    Other,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError {
    /// The attempted operation, as an infinitive for messages.
    pub verb: &'static str,
    /// The object of the operation.
    pub key: Key,
    /// Determines whether the failure concerns one peer, and whether the reconciler retries the operation.
    pub kind: FailureKind,
    /// The reason, with the remedy.
    pub why: Failure,
}

/// A failed read from the kernel or query to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// The request, named in the error text.
    pub what: Request,
    /// The reason, with the remedy.
    pub why: Failure,
}

/// A request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens a netlink socket.
    Open,
    /// Subscribes to notifications.
    Subscribe,
    /// Dumps all objects of a kind.
    List(Listed),
    /// Checks whether the kernel supports vxlan.
    FindVxlan,
    /// Checks whether the kernel supports WireGuard.
    FindWireguard,
    /// Configures WireGuard interfaces.
    ConfigureWireguard,
    /// Looks up the route to a destination address.
    Lookup(IpAddr),
    /// Creates flanneld's probe port in the pods' bridge.
    MakePort,
    /// An operation on an object on which all other objects depend.
    Operation {
        /// The operation, as an infinitive for messages.
        verb: &'static str,
        /// The object of the operation.
        key: Box<Key>,
    },
    /// Reads the kernel state to compare it with the desired state.
    Compare,
    /// Reads the kernel state for a kernel audit.
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

/// The reason why a kernel request failed or was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The kernel answered with an errno.
    Refused {
        /// The errno of the kernel's answer.
        errno: Errno,
        /// The kernel's message (extended acknowledgement). Empty if the kernel sent no message.
        words: String,
        /// The likely cause, given the operation.
        cause: Cause,
    },
    /// The kernel did not answer before the timeout.
    Silent,
    /// The kernel did not answer an operation. Whether the operation took effect is unknown.
    Unanswered,
    /// The kernel's objects changed during this number of dumps in a row.
    Interrupted(u32),
    /// The kernel's answer contains no route.
    NoRoute,
    /// The kernel module that must answer is not loaded.
    NotLoaded {
        /// Name of the kernel module.
        module: &'static str,
    },
    /// The interface of the object does not exist.
    NoInterface(LinkName),
    /// The interface disappeared during the operation.
    InterfaceGone,
    /// An interface of another kind has the name of flannel's interface.
    NameTaken {
        /// Name of the interface.
        link: LinkName,
        /// The kind of the interface, as the kernel names it.
        kind: String,
    },
    /// flanneld cannot request an interface of this kind: the program that opens the interface creates it.
    OpenedByProgram {
        /// The kind of the interface, as the kernel names it.
        kind: String,
    },
    /// The kernel state has not been read successfully yet.
    Unread,
    /// The network is being stopped.
    Stopping,
    /// The packet engine of the device failed because of this problem.
    Userspace(Box<Problem>),
}

/// The likely cause of a refusal, given the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel's answer shows no cause.
    Unknown,
    /// This process lacks the privilege.
    Forbidden,
    /// IPv6 is disabled on the interface.
    Ipv6Disabled(LinkName),
    /// A foreign route leads to the same destination.
    RouteExists(IpNet),
    /// A peer is not on-link on the underlay interface.
    NotOnLink {
        /// Public address of the peer, the gateway of its route.
        via: IpAddr,
        /// The underlay interface.
        dev: LinkName,
    },
    /// A gateway is not reachable over its interface.
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
    /// Another IPIP interface has the same local and remote addresses.
    SameEnds(LinkName),
    /// Another process or interface uses the UDP port.
    PortTaken {
        /// The interface that needs the port.
        link: LinkName,
        /// UDP port that is in use.
        port: u16,
        /// Whether WireGuard needs the port; if not, vxlan needs it.
        wireguard: bool,
    },
    /// Another vxlan interface has the same VNI and UDP port, or another program uses the port.
    TunnelExists(LinkName),
}

impl Failure {
    /// Returns a refusal by the kernel with an unknown cause.
    pub(crate) fn refused(errno: impl Into<Errno>) -> Self {
        Failure::Refused {
            errno: errno.into(),
            words: String::new(),
            cause: Cause::Unknown,
        }
    }

    /// Wraps a problem of the device's packet engine.
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
            // A problem that comes from this process has a static code.
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

    /// Writes the remedy that follows the kernel's message.
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
            Failure::Unread => f.write_str("it has not been read yet"),
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
            Listed::Rules => "policy routing rules",
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
            Request::FindWireguard => f.write_str("check for WireGuard support"),
            Request::ConfigureWireguard => f.write_str("configure WireGuard"),
            Request::Lookup(to) => write!(f, "look up the route to {to}"),
            Request::MakePort => f.write_str("create a probe port in the pods' bridge"),
            Request::Operation { verb, key } => write!(f, "cannot {verb} {key}"),
            Request::Compare => f.write_str("compare with the kernel"),
            Request::Look => f.write_str("read the kernel's state"),
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
