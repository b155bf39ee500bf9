//! Problems of the daemon itself. Each of the daemon's libraries defines its own problems.

use crate::underlay::Better;
use run_dir::process::PortHolder;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use types::problem::{ConfigPlace, PortPurpose};
use types::{Coded, Detail, Problem, Subnets, printable};

/// A problem of the daemon itself.
#[derive(Debug)]
pub enum DaemonProblem {
    /// An incomplete start of the daemon.
    Starting,
    /// A restart of the network by the daemon.
    Restarting {
        /// Reason for the restart.
        why: Box<Problem>,
    },
    /// Traffic rules that flanneld has not applied yet.
    RulesPending,
    /// An interruption of the lease watch for longer than the limit.
    NoNews {
        /// Time since the watch was interrupted.
        since: Duration,
    },
    /// Lack of a usable lease of another node.
    CutOff {
        /// The number of other nodes.
        nodes: usize,
    },
    /// This node's lease, which expires soon because the daemon cannot renew the lease.
    LeaseEnds {
        /// Time until the lease expires.
        left: Duration,
        /// Problem that prevents the renewal of the lease.
        trouble: Option<Box<Problem>>,
    },
    /// A change on this node that flanneld has not published yet.
    Unpublished {
        /// The change on this node that the store does not contain yet.
        what: Box<Problem>,
        /// Problem that prevents flanneld from publishing the change.
        trouble: Option<Box<Problem>>,
    },
    /// A configured backend that `--require-backend` does not name.
    BackendNotTaken {
        /// The configured backend; empty if the configuration names no backend.
        found: String,
        /// Backends that this node accepts.
        required: Vec<String>,
        /// Location of the configuration: a file or a key in the store.
        place: ConfigPlace,
        /// Location of the configuration, as text.
        at: String,
    },
    /// A change of this node's subnet in the store while flanneld waited for the lease.
    SubnetChanged {
        /// The subnet that this node has now.
        now: Subnets,
        /// The subnet that this node had before.
        before: Subnets,
    },
    /// A change of this node's subnet in the store while flanneld waited for an interface.
    SubnetChangedWhileWaiting,
    /// A change of the network configuration.
    ConfigChanged,
    /// A change of the interface's MTU, after which IPv6 fits into the tunnel's packets, or no longer fits.
    MtuChanged {
        /// The underlay interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
    },
    /// An interface that is better than the current underlay interface.
    BetterInterface(Better),
    /// A task of the daemon that panicked or was aborted.
    TaskFailed {
        /// Error message of the tokio runtime.
        error: String,
    },
    /// An HTTP server of the daemon that cannot listen on its port.
    Listen {
        /// Server that cannot listen.
        server: HttpServer,
        /// Address and port on which the server has to listen.
        address: SocketAddr,
        /// Error of the system call.
        error: io::Error,
        /// The program that holds the port, where this process can see it.
        holder: Option<PortHolder>,
    },
    /// An interruption of the lease watch for an unknown reason.
    WatchInterrupted,
}

/// An HTTP server of the daemon, on its own TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpServer {
    /// The health endpoints.
    Health,
    /// The status API.
    Api,
}

impl HttpServer {
    /// Returns the name of the server for messages.
    pub const fn name(self) -> &'static str {
        match self {
            HttpServer::Health => "the health server",
            HttpServer::Api => "the status API",
        }
    }

    fn remedy(self, address: SocketAddr, error: &io::Error, holder: Option<&PortHolder>) -> String {
        let (port, none, ip) = match self {
            HttpServer::Health => ("--healthz-port", "(0: no server)", "--healthz-ip"),
            HttpServer::Api => ("--status-port", "(0: none)", "--status-ip"),
        };
        match (error.kind(), self) {
            (io::ErrorKind::AddrInUse, _) => {
                let find =
                    || format!("find the process with `ss -ltnp sport = :{}`", address.port());
                let holder = holder.map_or_else(find, |holder| format!("stop {holder}"));
                format!("{holder}, or choose another port with {port} {none}")
            }
            (io::ErrorKind::AddrNotAvailable, HttpServer::Health) => {
                format!("set {ip} to an address of this host (0.0.0.0: all of them)")
            }
            (io::ErrorKind::AddrNotAvailable, HttpServer::Api) => {
                format!("set {ip} to an address of this host")
            }
            (io::ErrorKind::PermissionDenied, HttpServer::Health) => {
                format!(
                    "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher port with {port}"
                )
            }
            (_, HttpServer::Health) => format!("check {ip} and {port}"),
            (_, HttpServer::Api) => format!("check {ip} and {port} {none}"),
        }
    }
}

impl Coded for DaemonProblem {
    fn code(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Restarting { .. } => "restarting",
            Self::RulesPending => "rules-pending",
            Self::NoNews { .. } => "no-news",
            Self::CutOff { .. } => "cut-off",
            Self::LeaseEnds { .. } => "lease-ends",
            Self::Unpublished { .. } => "unpublished",
            Self::BackendNotTaken { .. } => "backend-not-taken",
            Self::SubnetChanged { .. } | Self::SubnetChangedWhileWaiting => "subnet-changed",
            Self::ConfigChanged => "config-changed",
            Self::MtuChanged { .. } => "mtu-changed",
            Self::BetterInterface(_) => "better-interface",
            Self::TaskFailed { .. } => "task-failed",
            Self::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse => "port-taken",
            Self::Listen { .. } => "cannot-listen",
            Self::WatchInterrupted => "watch-interrupted",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Self::Listen { server, address, error, .. }
                if error.kind() == io::ErrorKind::AddrInUse =>
            {
                let purpose = match server {
                    HttpServer::Health => PortPurpose::Health,
                    HttpServer::Api => PortPurpose::Api,
                };
                Detail::PortTaken { number: address.port(), udp: false, purpose }
            }
            Self::BackendNotTaken { place, .. } => {
                Detail::ConfigInvalid { place: Some(place.clone()) }
            }
            _ => Detail::None,
        }
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            Self::Restarting { why } => vec![(**why).clone()],
            Self::LeaseEnds { trouble, .. } | Self::Unpublished { trouble, .. } => {
                trouble.iter().map(|trouble| (**trouble).clone()).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for DaemonProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Restarting { why } => write!(f, "restarting the network: {why}"),
            Self::RulesPending => f.write_str("flanneld is still applying the traffic rules"),
            Self::NoNews { since } => {
                write!(
                    f,
                    "no news of the other nodes for {} s: the store does not respond, or reports no changes",
                    since.as_secs()
                )
            }
            Self::CutOff { nodes } => {
                write!(
                    f,
                    "this node reaches none of the {nodes} other nodes: it can use none of their leases"
                )
            }
            Self::LeaseEnds { left, trouble } => {
                let trouble = trouble.as_ref().map(ToString::to_string).unwrap_or_default();
                write!(f, "cannot renew the lease, which ends in {} s: {trouble}", left.as_secs())
            }
            Self::Unpublished { what, trouble: Some(trouble) } => write!(f, "{what}: {trouble}"),
            Self::Unpublished { what, trouble: None } => write!(f, "{what}"),
            Self::BackendNotTaken { found, required, at, .. } => {
                write_backend_not_taken(f, found, required, at)
            }
            Self::SubnetChanged { now, before } => {
                write!(
                    f,
                    "this node's subnet changed from {before} to {now} while flanneld waited for the lease"
                )
            }
            Self::SubnetChangedWhileWaiting => {
                f.write_str("this node got another subnet while it waited for an interface")
            }
            Self::ConfigChanged => f.write_str("the network configuration has changed"),
            Self::MtuChanged { interface, mtu } => write!(f, "the MTU of {interface} is now {mtu}"),
            Self::BetterInterface(why) => why.fmt(f),
            Self::TaskFailed { error } => write!(f, "a task of the daemon failed: {error}"),
            Self::Listen { server, address, error, holder } => {
                write_listen(f, *server, *address, error, holder.as_ref())
            }
            Self::WatchInterrupted => f.write_str("the watch of the leases is interrupted"),
        }
    }
}

fn write_backend_not_taken(
    f: &mut fmt::Formatter<'_>,
    found: &str,
    required: &[String],
    at: &str,
) -> fmt::Result {
    let found = if found.is_empty() { "(none)".into() } else { printable::value(found) };
    write!(
        f,
        "this node does not accept backend type {found} (--require-backend={}); set Backend.Type in the network configuration to {}, in {at}. To use {found}, change --require-backend on this node",
        required.join(","),
        required.join(" or "),
    )
}

fn write_listen(
    f: &mut fmt::Formatter<'_>,
    server: HttpServer,
    address: SocketAddr,
    error: &io::Error,
    holder: Option<&PortHolder>,
) -> fmt::Result {
    match server {
        HttpServer::Health => write!(f, "the health server cannot listen on {address}: {error}; ")?,
        HttpServer::Api => write!(f, "the status API cannot listen on {address}: {error}; ")?,
    }
    f.write_str(&server.remedy(address, error, holder))
}

impl std::error::Error for DaemonProblem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { error, .. } => Some(error),
            Self::Restarting { why } => Some(&**why),
            _ => None,
        }
    }
}

/// Returns whether the problem is a missing or invalid network configuration.
pub fn is_about_config(problem: &Problem) -> bool {
    problem
        .details()
        .any(|detail| matches!(detail, Detail::ConfigMissing { .. } | Detail::ConfigInvalid { .. }))
}
