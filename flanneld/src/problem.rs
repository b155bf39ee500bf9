//! What can go wrong in the daemon itself. What goes wrong below it has the enums of its crates.

use crate::underlay::Better;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use types::problem::{ConfigPlace, PortPurpose, text};
use types::{Coded, Detail, Problem};
use types::{Subnets, printable};

/// What can go wrong in the daemon itself.
#[derive(Debug)]
pub enum DaemonProblem {
    /// The start is not complete.
    Starting,
    /// The network restarts.
    Restarting {
        /// Why.
        why: Box<Problem>,
    },
    /// The traffic rules are not applied for the first time yet.
    RulesPending,
    /// Nothing has been heard of the other nodes.
    NoNews {
        /// For how long.
        since: Duration,
    },
    /// No lease of another node can be used.
    CutOff {
        /// The number of other nodes.
        nodes: usize,
    },
    /// The lease ends soon and is not renewed.
    LeaseEnds {
        /// The time that is left.
        left: Duration,
        /// What keeps it from being renewed.
        trouble: Option<Box<Problem>>,
    },
    /// Peers do not know what changed here.
    Unpublished {
        /// What changed.
        what: Box<Problem>,
        /// What keeps it from being published.
        trouble: Option<Box<Problem>>,
    },
    /// `--require-backend` names other backends than the configuration does.
    BackendNotTaken {
        /// The configured one; empty if none is.
        found: String,
        /// Those that this node takes.
        required: Vec<String>,
        /// Where the configuration is.
        place: ConfigPlace,
        /// The same, for people.
        at: String,
    },
    /// The store gave this node another subnet while it waited for its lease.
    SubnetChanged {
        /// What it is now.
        now: Subnets,
        /// What it was.
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
        /// The runtime's words.
        error: String,
    },
    /// A port cannot be listened on.
    Listen {
        /// The way in.
        way: WayIn,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The watch of the leases is interrupted, and nothing tells why.
    WatchInterrupted,
}

/// A TCP port of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayIn {
    /// The health endpoints.
    Health,
    /// The API.
    Api,
}

impl WayIn {
    /// Its name in texts.
    pub const fn name(self) -> &'static str {
        match self {
            WayIn::Health => "the health server",
            WayIn::Api => "the status API",
        }
    }

    fn remedy(self, address: SocketAddr, error: &io::Error) -> String {
        let (port, none, ip) = match self {
            WayIn::Health => ("--healthz-port", "(0: no server)", "--healthz-ip"),
            WayIn::Api => ("--status-port", "(0: none)", "--status-ip"),
        };
        match (error.kind(), self) {
            (io::ErrorKind::AddrInUse, _) => {
                format!(
                    "find the process with `ss -ltnp sport = :{}`, or choose another port with {port} {none}",
                    address.port()
                )
            }
            (io::ErrorKind::AddrNotAvailable, WayIn::Health) => {
                format!("set {ip} to an address of this host (0.0.0.0: all of them)")
            }
            (io::ErrorKind::AddrNotAvailable, WayIn::Api) => {
                format!("set {ip} to an address of this host")
            }
            (io::ErrorKind::PermissionDenied, WayIn::Health) => {
                format!(
                    "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one with {port}"
                )
            }
            (_, WayIn::Health) => format!("check {ip} and {port}"),
            (_, WayIn::Api) => format!("check {ip} and {port} {none}"),
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
                way,
                address,
                error,
            } if error.kind() == io::ErrorKind::AddrInUse => {
                let purpose = match way {
                    WayIn::Health => PortPurpose::Health,
                    WayIn::Api => PortPurpose::Api,
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
            } => {
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
                way: way @ WayIn::Health,
                address,
                error,
            } => {
                write!(
                    f,
                    "the health server cannot listen on {address}: {error}; {}",
                    way.remedy(*address, error)
                )
            }
            Self::Listen {
                way: way @ WayIn::Api,
                address,
                error,
            } => {
                write!(
                    f,
                    "the status API cannot listen on {address}: {error}; {}",
                    way.remedy(*address, error)
                )
            }
            Self::WatchInterrupted => f.write_str("the watch of the leases is interrupted"),
        })
    }
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
