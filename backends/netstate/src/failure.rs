//! Failed requests to the kernel as values: the request and the reason.

use crate::names::LinkName;
use crate::object::Key;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use types::problem::PortPurpose;
use types::{Coded, Detail, Errno, Problem};

/// The class of a failure, which determines how the reconciler handles the failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Refusal by the kernel that affects only one object. A foreign object conflicts with the object, or the kernel cannot use the object's address.
    Conflict,
    /// Operation that the kernel does not support.
    Unsupported,
    /// Any failure that is neither [`Conflict`](Self::Conflict) nor [`Unsupported`](Self::Unsupported). The reconciler retries the failed operation.
    Other,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError {
    /// The attempted operation, as an infinitive for messages.
    pub verb: &'static str,
    /// The key of the object that the operation changes.
    pub key: Key,
    /// The class of the failure: whether the failure affects only one peer, and whether the reconciler retries the operation.
    pub kind: FailureKind,
    /// The reason, with the remedy.
    pub why: Failure,
}

/// A failed read from the kernel or a failed query to the kernel.
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
    /// Dumps all kernel objects of one kind.
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
    /// An operation on an object that all other objects need.
    Operation {
        /// The operation, as an infinitive for messages.
        verb: &'static str,
        /// The key of the object that the operation changes.
        key: Box<Key>,
    },
    /// Reads the kernel state to compare it with the desired state.
    Compare,
    /// Reads the kernel state for a query by another task.
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

/// The reason why a kernel request failed or why flanneld did not send the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Refusal by the kernel with an errno.
    Refused {
        /// The errno of the kernel's answer.
        errno: Errno,
        /// The kernel's message (extended acknowledgement), or an empty text if the kernel sent no message.
        words: String,
        /// The likely cause of the refusal.
        cause: Cause,
    },
    /// Lack of an answer from the kernel before the timeout.
    Silent,
    /// Lack of an answer from the kernel to an operation. flanneld does not know whether the operation took effect.
    Unanswered,
    /// Change of the kernel's objects during each of several consecutive dumps, with the number of dumps.
    Interrupted(u32),
    /// Reply of the kernel that contains no route.
    NoRoute,
    /// Kernel module that is not loaded, so no module answers the request.
    NotLoaded {
        /// Name of the kernel module.
        module: &'static str,
    },
    /// Absence of the interface to which the object belongs.
    NoInterface(LinkName),
    /// Disappearance of the interface during the operation.
    InterfaceGone,
    /// Interface that has the name of flannel's interface but a different kind.
    NameTaken {
        /// Name of the interface.
        link: LinkName,
        /// The kind of the interface, as the kernel names it.
        kind: String,
    },
    /// Kind of interface that the kernel creates only for the program that opens the device, so netlink cannot create the interface.
    OpenedByProgram {
        /// The kind of the interface, as the kernel names it.
        kind: String,
    },
    /// Kernel state that flanneld has not read successfully yet.
    Unread,
    /// Operation that flanneld no longer performs, because flanneld is stopping the network.
    Stopping,
    /// Failure of the device's packet engine, with the engine's problem.
    Userspace(Box<Problem>),
}

/// The likely cause of the kernel's refusal of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Cause that flanneld cannot derive from the kernel's reply.
    Unknown,
    /// Missing CAP_NET_ADMIN of the current process.
    Forbidden,
    /// Disabled IPv6 on an interface.
    Ipv6Disabled(LinkName),
    /// Foreign route to the same destination.
    RouteExists(IpNet),
    /// Peer that is not on-link on the underlay interface.
    NotOnLink {
        /// Public address of the peer, which is the gateway of the peer's route.
        via: IpAddr,
        /// The underlay interface.
        dev: LinkName,
    },
    /// Gateway that is not reachable over the route's interface.
    Unreachable {
        /// Address of the gateway.
        via: IpAddr,
        /// Interface of the route.
        dev: LinkName,
    },
    /// Interface kind that the kernel does not know.
    ModuleMissing {
        /// Name of the interface.
        link: LinkName,
        /// Name of the kernel module.
        module: String,
    },
    /// Another IPIP interface with the same local and remote addresses.
    SameEnds(LinkName),
    /// UDP port that another process or interface uses.
    PortTaken {
        /// The interface that needs the port.
        link: LinkName,
        /// UDP port that is in use.
        port: u16,
        /// Whether a WireGuard interface needs the port; otherwise, a vxlan interface needs the port.
        wireguard: bool,
    },
    /// Another vxlan interface with the same VNI and UDP port, or another program that uses the port.
    TunnelExists(LinkName),
}

impl Failure {
    /// Returns a refusal by the kernel with an unknown cause.
    pub(crate) fn refused(errno: impl Into<Errno>) -> Self {
        Failure::Refused { errno: errno.into(), words: String::new(), cause: Cause::Unknown }
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
            Failure::Refused { cause: Cause::ModuleMissing { module, .. }, .. } => {
                Detail::ModuleMissing { name: module.clone() }
            }
            Failure::Refused { cause: Cause::PortTaken { port, .. }, .. } => {
                Detail::PortTaken { number: *port, udp: true, purpose: PortPurpose::Tunnel }
            }
            Failure::NotLoaded { module } => Detail::ModuleMissing { name: (*module).to_owned() },
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
            Cause::Forbidden => {
                f.write_str("; run this program with CAP_NET_ADMIN in this network namespace")
            }
            Cause::Ipv6Disabled(name) => {
                write!(
                    f,
                    "; IPv6 is disabled on {name}; run sysctl -w net.ipv6.conf.{name}.disable_ipv6=0, and the same command for default"
                )
            }
            Cause::RouteExists(net) => write!(
                f,
                "; another route to {net} already exists; find the route with `ip route show {net}` and remove it (an address of cni0 causes a route through cni0: remove the address with `ip address del`, and restart the pods of its subnet)"
            ),
            Cause::NotOnLink { via, dev } => write!(
                f,
                "; the peer's address {via} is not on the network of {dev}: host-gw and DirectRouting need a direct link; other peers are not affected"
            ),
            Cause::Unreachable { via, dev } => write!(
                f,
                "; {via} must be reachable over {dev}; check that the interface is up and that no other route to {via} takes precedence (ip route get {via})"
            ),
            Cause::ModuleMissing { link, module } => write!(
                f,
                "; {link} needs the kernel module {module}; run modprobe {module} (some distributions package the module separately, as linux-modules-extra-$(uname -r) or kernel-modules-extra)"
            ),
            Cause::SameEnds(name) => write!(
                f,
                "; an interface {name}, or another IPIP interface with the same addresses, exists; find the interface with `ip -d link show type ipip`, and delete it"
            ),
            Cause::PortTaken { link, port, wireguard: true } => write!(
                f,
                "; another WireGuard interface or program uses UDP port {port}, which {link} needs. Find the user of the port with `wg show all listen-port` and `ss -ulpn`, or set another ListenPort in the Backend, on all nodes"
            ),
            Cause::PortTaken { link, port, wireguard: false } => write!(
                f,
                "; another program uses UDP port {port}, which {link} needs. Find the program with `ss -ulpn sport = :{port}`, or set another Port in the Backend, on all nodes"
            ),
            Cause::TunnelExists(name) => write!(
                f,
                "; another vxlan interface or program uses the VNI and UDP port of {name}. Find the interface or program with `ip -d link show type vxlan` and `ss -ulpn`, or set another Port or VNI in the Backend"
            ),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused { errno, words, cause } => {
                write!(f, "{errno}")?;
                if !words.is_empty() {
                    write!(f, ": {words}")?;
                }
                cause.remedy(f)
            }
            Failure::Silent => f.write_str("the kernel does not respond"),
            Failure::Unanswered => {
                f.write_str("the kernel did not respond; the next pass checks the result")
            }
            Failure::Interrupted(times) => {
                write!(f, "changes of the kernel's objects interrupted {times} consecutive reads")
            }
            Failure::NoRoute => f.write_str("the kernel returned no route"),
            Failure::NotLoaded { module } => {
                write!(f, "the kernel module {module} is not loaded; run modprobe {module}")
            }
            Failure::NoInterface(name) => write!(f, "interface {name} does not exist"),
            Failure::InterfaceGone => f.write_str("the interface no longer exists"),
            Failure::NameTaken { link, kind } => {
                write!(
                    f,
                    "an interface {link} of kind {kind} already exists; rename or delete the interface (ip link delete {link})"
                )
            }
            Failure::OpenedByProgram { kind } => {
                write!(f, "only the program that opens a {kind} device can create the device")
            }
            Failure::Unread => f.write_str("flanneld has not read the kernel state yet"),
            Failure::Stopping => f.write_str("flanneld is stopping the network"),
            Failure::Userspace(problem) => problem.fmt(f),
        }
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
        write!(f, "{}: {}", self.what, self.why)
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
        write!(f, "cannot {} {}: {}", self.verb, self.key, self.why)
    }
}

impl std::error::Error for OpError {}

impl From<OpError> for KernelError {
    fn from(error: OpError) -> Self {
        KernelError {
            what: Request::Operation { verb: error.verb, key: Box::new(error.key) },
            why: error.why,
        }
    }
}
