//! Failed requests to the kernel.

use crate::names::LinkName;
use crate::object::Key;
use ipnet::IpNet;
use std::borrow::Cow;
use std::net::IpAddr;
use thiserror::Error;
use types::problem::PortPurpose;
use types::{Coded, Detail, Errno, Problem};

/// How the reconciler handles a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The kernel refuses only this object: a foreign object conflicts with it, or the kernel cannot use its address.
    Conflict,
    Unsupported,
    /// The reconciler retries the operation.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("cannot {verb} {key}: {why}")]
#[code(of = why)]
pub struct OpError {
    /// An infinitive.
    pub verb: &'static str,
    pub key: Key,
    pub kind: FailureKind,
    pub why: RequestError,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("{what}: {why}")]
#[code(of = why)]
pub struct KernelError {
    /// The request, as an infinitive with its object.
    pub what: String,
    pub why: RequestError,
}

impl KernelError {
    pub fn new(what: impl Into<String>, why: RequestError) -> Self {
        Self { what: what.into(), why }
    }
}

impl From<OpError> for KernelError {
    fn from(error: OpError) -> Self {
        Self::new(format!("cannot {} {}", error.verb, error.key), error.why)
    }
}

/// Why a request failed, or why flanneld did not send it.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum RequestError {
    /// `words` are the kernel's extended acknowledgement, and empty without one.
    #[error("{errno}{}{words}{cause}", if .words.is_empty() { "" } else { ": " })]
    #[code(of = cause)]
    Refused { errno: Errno, words: String, cause: RefusalError },
    #[error("the kernel does not respond")]
    #[code("kernel-silent")]
    Silent,
    /// It is not known whether the operation took effect.
    #[error("the kernel did not respond; the next pass checks the result")]
    #[code("kernel-silent")]
    Unanswered,
    /// The kernel's objects changed during each of so many consecutive dumps.
    #[error("changes of the kernel's objects interrupted {0} consecutive reads")]
    #[code("kernel-changing")]
    Interrupted(u32),
    #[error("the kernel returned no route")]
    #[code("kernel-answer-unusable")]
    NoRoute,
    #[error("the kernel module {module} is not loaded; run modprobe {module}")]
    #[code("module-missing")]
    #[detail(Detail::ModuleMissing { name: (*module).to_owned() })]
    NotLoaded { module: &'static str },
    #[error("interface {0} does not exist")]
    #[code("interface-missing")]
    NoInterface(LinkName),
    #[error("the interface no longer exists")]
    #[code("interface-missing")]
    InterfaceGone,
    #[error(
        "an interface {link} of kind {kind} already exists; rename or delete the interface (ip link delete {link})"
    )]
    #[code("interface-name-taken")]
    NameTaken { link: LinkName, kind: String },
    /// Netlink cannot create an interface of this kind.
    #[error("only the program that opens a {kind} device can create the device")]
    #[code("interface-not-creatable")]
    OpenedByProgram { kind: String },
    #[error("flanneld has not read the kernel state yet")]
    #[code("kernel-unread")]
    Unread,
    #[error("flanneld is stopping the network")]
    #[code("network-stopping")]
    Stopping,
    /// The problem of the device's packet engine.
    #[error("{0}")]
    #[code(static_code(_0))]
    #[detail(_0.detail.clone())]
    Userspace(Box<Problem>),
}

impl RequestError {
    pub(crate) fn refused(errno: impl Into<Errno>) -> Self {
        let cause = RefusalError::Unknown;
        Self::Refused { errno: errno.into(), words: String::new(), cause }
    }

    pub fn userspace(problem: impl Into<Problem>) -> Self {
        Self::Userspace(Box::new(problem.into()))
    }
}

fn static_code(problem: &Problem) -> &'static str {
    match problem.code {
        Cow::Borrowed(code) => code,
        // Only a problem of another process has such a code.
        Cow::Owned(_) => "userspace-device-failed",
    }
}

/// The likely cause of a refusal. Its text continues the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum RefusalError {
    #[error("")]
    #[code("kernel-refused")]
    Unknown,
    #[error("; run this program with CAP_NET_ADMIN in this network namespace")]
    #[code("kernel-forbidden")]
    Forbidden,
    #[error(
        "; IPv6 is disabled on {0}; run sysctl -w net.ipv6.conf.{0}.disable_ipv6=0, and the same command for default"
    )]
    Ipv6Disabled(LinkName),
    #[error(
        "; another route to {0} already exists; find the route with `ip route show {0}` and remove it (an address of cni0 causes a route through cni0: remove the address with `ip address del`, and restart the pods of its subnet)"
    )]
    RouteExists(IpNet),
    /// `dev` is the underlay interface.
    #[error(
        "; the peer's address {via} is not on the network of {dev}: host-gw and DirectRouting need a direct link; other peers are not affected"
    )]
    #[code("peer-not-on-link")]
    NotOnLink { via: IpAddr, dev: LinkName },
    #[error(
        "; {via} must be reachable over {dev}; check that the interface is up and that no other route to {via} takes precedence (ip route get {via})"
    )]
    #[code("gateway-unreachable")]
    Unreachable { via: IpAddr, dev: LinkName },
    #[error(
        "; {link} needs the kernel module {module}; run modprobe {module} (some distributions package the module separately, as linux-modules-extra-$(uname -r) or kernel-modules-extra)"
    )]
    #[detail(Detail::ModuleMissing { name: module.clone() })]
    ModuleMissing { link: LinkName, module: String },
    /// Another IPIP interface with the same local and remote addresses.
    #[error(
        "; an interface {0}, or another IPIP interface with the same addresses, exists; find the interface with `ip -d link show type ipip`, and delete it"
    )]
    #[code("tunnel-exists")]
    SameEnds(LinkName),
    #[error(
        "; another program uses UDP port {port}, which {link} needs. Find the program with `ss -ulpn sport = :{port}`, or set another Port in the Backend, on all nodes"
    )]
    #[code("tunnel-port-taken")]
    #[detail(tunnel_port(*port))]
    PortTaken { link: LinkName, port: u16 },
    #[error(
        "; another WireGuard interface or program uses UDP port {port}, which {link} needs. Find the user of the port with `wg show all listen-port` and `ss -ulpn`, or set another ListenPort in the Backend, on all nodes"
    )]
    #[code("tunnel-port-taken")]
    #[detail(tunnel_port(*port))]
    WireguardPortTaken { link: LinkName, port: u16 },
    /// Another vxlan interface with the same VNI and UDP port, or another program that uses the port.
    #[error(
        "; another vxlan interface or program uses the VNI and UDP port of {0}. Find the interface or program with `ip -d link show type vxlan` and `ss -ulpn`, or set another Port or VNI in the Backend"
    )]
    TunnelExists(LinkName),
}

fn tunnel_port(number: u16) -> Detail {
    Detail::PortTaken { number, udp: true, purpose: PortPurpose::Tunnel }
}
