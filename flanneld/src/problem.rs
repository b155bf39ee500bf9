//! Problems of the daemon itself. Its crates define enums for theirs.

use crate::underlay::Better;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use types::problem::{ConfigPlace, PortPurpose, text};
use types::{Coded, Detail, Problem};
use types::{Subnets, printable};

/// A problem of the daemon itself.
#[derive(Debug)]
pub enum DaemonProblem {
    /// The start is not complete.
    Starting,
    /// The network of this node restarts.
    Restarting {
        /// Reason for the restart.
        why: Box<Problem>,
    },
    /// The traffic rules are not applied for the first time yet.
    RulesPending,
    /// The watch of the leases has been interrupted for too long.
    NoNews {
        /// Time since the watch was interrupted.
        since: Duration,
    },
    /// No lease of another node can be used.
    CutOff {
        /// The number of other nodes.
        nodes: usize,
    },
    /// The lease ends soon and is not renewed.
    LeaseEnds {
        /// Time until the lease expires.
        left: Duration,
        /// Problem that prevents the renewal.
        trouble: Option<Box<Problem>>,
    },
    /// A change on this node is not published, so peers do not know it.
    Unpublished {
        /// The change that peers do not know.
        what: Box<Problem>,
        /// Problem that prevents the publication.
        trouble: Option<Box<Problem>>,
    },
    /// The configured backend is not one of those that `--require-backend` names.
    BackendNotTaken {
        /// The configured backend; empty if none is configured.
        found: String,
        /// Backends that this node accepts.
        required: Vec<String>,
        /// Place of the configuration.
        place: ConfigPlace,
        /// Place of the configuration, as text.
        at: String,
    },
    /// The store gave this node another subnet while it waited for its lease.
    SubnetChanged {
        /// The subnet that the node has now.
        now: Subnets,
        /// The subnet that the node had before.
        before: Subnets,
    },
    /// The store gave this node another subnet while it waited for an interface.
    SubnetChangedWhileWaiting,
    /// The network configuration has changed.
    ConfigChanged,
    /// Another interface is better.
    BetterInterface(Better),
    /// A task of the daemon panicked or was aborted.
    TaskFailed {
        /// Message of the runtime.
        error: String,
    },
    /// A server cannot listen on its port.
    Listen {
        /// Server that cannot listen.
        server: HttpServer,
        /// Address that the server was to listen on.
        address: SocketAddr,
        /// Error of the system call.
        error: io::Error,
    },
    /// The watch of the leases is interrupted for an unknown reason.
    WatchInterrupted,
}

/// A TCP port of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpServer {
    /// The health endpoints.
    Health,
    /// The status API.
    Api,
}

impl HttpServer {
    /// Returns the name of the server in texts.
    pub const fn name(self) -> &'static str {
        match self {
            HttpServer::Health => "the health server",
            HttpServer::Api => "the status API",
        }
    }

    fn remedy(self, address: SocketAddr, error: &io::Error) -> String {
        let (port, none, ip) = match self {
            HttpServer::Health => ("--healthz-port", "(0: no server)", "--healthz-ip"),
            HttpServer::Api => ("--status-port", "(0: none)", "--status-ip"),
        };
        match (error.kind(), self) {
            (io::ErrorKind::AddrInUse, _) => {
                format!(
                    "find the process with `ss -ltnp sport = :{}`, or choose another port with {port} {none}",
                    address.port()
                )
            }
            (io::ErrorKind::AddrNotAvailable, HttpServer::Health) => {
                format!("set {ip} to an address of this host (0.0.0.0: all of them)")
            }
            (io::ErrorKind::AddrNotAvailable, HttpServer::Api) => {
                format!("set {ip} to an address of this host")
            }
            (io::ErrorKind::PermissionDenied, HttpServer::Health) => {
                format!(
                    "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one with {port}"
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
            Self::BetterInterface(_) => "better-interface",
            Self::TaskFailed { .. } => "task-failed",
            Self::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse => "port-taken",
            Self::Listen { .. } => "cannot-listen",
            Self::WatchInterrupted => "watch-interrupted",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Self::Listen {
                server,
                address,
                error,
            } if error.kind() == io::ErrorKind::AddrInUse => {
                let purpose = match server {
                    HttpServer::Health => PortPurpose::Health,
                    HttpServer::Api => PortPurpose::Api,
                };
                Detail::PortTaken {
                    number: address.port(),
                    udp: false,
                    purpose,
                }
            }
            Self::BackendNotTaken { place, .. } => Detail::ConfigInvalid {
                place: Some(place.clone()),
            },
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
        text(f, self, |f| match self {
            Self::Starting => f.write_str("starting"),
            Self::Restarting { why } => write!(f, "restarting the network: {why}"),
            Self::RulesPending => f.write_str("the traffic rules are being applied"),
            Self::NoNews { since } => {
                write!(
                    f,
                    "no news of the other nodes for {} s: the store does not answer, or reports no changes",
                    since.as_secs()
                )
            }
            Self::CutOff { nodes } => {
                write!(
                    f,
                    "none of the {nodes} other nodes can be reached: none of their leases can be used on this node"
                )
            }
            Self::LeaseEnds { left, trouble } => {
                let trouble = trouble
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                write!(
                    f,
                    "the lease ends in {} s and could not be renewed: {trouble}",
                    left.as_secs()
                )
            }
            Self::Unpublished {
                what,
                trouble: Some(trouble),
            } => write!(f, "{what}: {trouble}"),
            Self::Unpublished {
                what,
                trouble: None,
            } => write!(f, "{what}"),
            Self::BackendNotTaken {
                found,
                required,
                at,
                ..
            } => write_backend_not_taken(f, found, required, at),
            Self::SubnetChanged { now, before } => {
                write!(
                    f,
                    "this node's subnet became {now} while it waited for its lease, and was {before}"
                )
            }
            Self::SubnetChangedWhileWaiting => {
                f.write_str("this node got another subnet while it waited for an interface")
            }
            Self::ConfigChanged => f.write_str("the network configuration has changed"),
            Self::BetterInterface(why) => why.fmt(f),
            Self::TaskFailed { error } => write!(f, "a task of the daemon failed: {error}"),
            Self::Listen {
                server,
                address,
                error,
            } => write_listen(f, *server, *address, error),
            Self::WatchInterrupted => f.write_str("the watch of the leases is interrupted"),
        })
    }
}

fn write_backend_not_taken(
    f: &mut fmt::Formatter<'_>,
    found: &str,
    required: &[String],
    at: &str,
) -> fmt::Result {
    let found = if found.is_empty() {
        "(none)".into()
    } else {
        printable::value(found)
    };
    write!(
        f,
        "backend type {found} is not one that this node takes (--require-backend={}); set Backend.Type in the network configuration to {}, in \
         {at}; if {found} is meant, change --require-backend on this node",
        required.join(","),
        required.join(" or "),
    )
}

fn write_listen(
    f: &mut fmt::Formatter<'_>,
    server: HttpServer,
    address: SocketAddr,
    error: &io::Error,
) -> fmt::Result {
    match server {
        HttpServer::Health => write!(f, "the health server cannot listen on {address}: {error}; ")?,
        HttpServer::Api => write!(f, "the status API cannot listen on {address}: {error}; ")?,
    }
    f.write_str(&server.remedy(address, error))
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

/// Whether a problem means that the configuration is missing or invalid, rather than that the store does not respond.
pub fn is_about_config(problem: &Problem) -> bool {
    problem.details().any(|detail| {
        matches!(
            detail,
            Detail::ConfigMissing { .. } | Detail::ConfigInvalid { .. }
        )
    })
}
