//! Errors of the daemon itself.

use run_dir::process::PortHolder;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;
use types::problem::{ConfigPlace, PortPurpose};
use types::{Coded, Detail, Problem, Subnets, printable};

#[derive(Debug, Error, Coded)]
pub enum DaemonError {
    #[error("starting")]
    Starting,
    /// The daemon restarts the network.
    #[error("restarting the network: {why}")]
    #[parts(vec![(**why).clone()])]
    Restarting {
        #[source]
        why: Box<Problem>,
    },
    #[error("flanneld is still applying the traffic rules")]
    RulesPending,
    /// `since` is the time since the watch was interrupted.
    #[error("no news of the other nodes for {} s: the store does not respond, or reports no changes", .since.as_secs())]
    NoNews { since: Duration },
    #[error("this node reaches none of the {nodes} other nodes: it can use none of their leases")]
    CutOff { nodes: usize },
    /// `trouble` prevents the renewal of this node's lease, which expires in `left`.
    #[error(
        "cannot renew the lease, which ends in {} s: {}",
        .left.as_secs(), .trouble.as_ref().map(ToString::to_string).unwrap_or_default()
    )]
    #[parts(trouble.iter().map(|trouble| (**trouble).clone()).collect())]
    LeaseEnds { left: Duration, trouble: Option<Box<Problem>> },
    /// `trouble` prevents flanneld from publishing `what` changed on this node.
    #[error("{what}{}", .trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default())]
    #[parts(trouble.iter().map(|trouble| (**trouble).clone()).collect())]
    Unpublished { what: Box<Problem>, trouble: Option<Box<Problem>> },
    /// `--require-backend` does not name the configured backend. `found` is empty if the configuration names no
    /// backend. `at` is `place` as text.
    #[error("{}", backend_not_taken(.found, .required, .at))]
    #[detail(Detail::ConfigInvalid { place: Some(place.clone()) })]
    BackendNotTaken { found: String, required: Vec<String>, place: ConfigPlace, at: String },
    /// This node's subnet changed in the store.
    #[error(
        "this node's subnet changed from {before} to {now} while flanneld waited for the lease"
    )]
    SubnetChanged { now: Subnets, before: Subnets },
    #[error("this node got another subnet while it waited for an interface")]
    #[code("subnet-changed")]
    SubnetChangedWhileWaiting,
    #[error("the network configuration has changed")]
    ConfigChanged,
    /// IPv6 fits into the tunnel's packets, or no longer fits.
    #[error("the MTU of {interface} is now {mtu}")]
    MtuChanged { interface: String, mtu: u32 },
    /// Another interface is better than the underlay interface, for this reason.
    #[error("{0}")]
    BetterInterface(String),
    /// A task panicked or was aborted.
    #[error("a task of the daemon failed: {error}")]
    TaskFailed { error: String },
    /// `holder` is the program that holds the port, where this process can see it.
    #[error("{} cannot listen on {address}: {error}; {}", .server.name(), .server.remedy_of_taken(*.address, .holder.as_ref()))]
    #[detail(Detail::PortTaken { number: address.port(), udp: false, purpose: server.purpose() })]
    PortTaken {
        server: HttpServer,
        address: SocketAddr,
        #[source]
        error: io::Error,
        holder: Option<PortHolder>,
    },
    #[error("{} cannot listen on {address}: {error}; {}", .server.name(), .server.remedy(.error))]
    CannotListen {
        server: HttpServer,
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error("the watch of the leases is interrupted")]
    WatchInterrupted,
}

/// Each has its own TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpServer {
    Health,
    Api,
}

impl HttpServer {
    /// For messages.
    pub const fn name(self) -> &'static str {
        match self {
            HttpServer::Health => "the health server",
            HttpServer::Api => "the status API",
        }
    }

    const fn purpose(self) -> PortPurpose {
        match self {
            HttpServer::Health => PortPurpose::Health,
            HttpServer::Api => PortPurpose::Api,
        }
    }

    fn remedy_of_taken(self, address: SocketAddr, holder: Option<&PortHolder>) -> String {
        let flag = match self {
            HttpServer::Health => "--healthz-port (0: no server)",
            HttpServer::Api => "--status-port (0: none)",
        };
        let find = || format!("find the process with `ss -ltnp sport = :{}`", address.port());
        let holder = holder.map_or_else(find, |holder| format!("stop {holder}"));
        format!("{holder}, or choose another port with {flag}")
    }

    fn remedy(self, error: &io::Error) -> &'static str {
        match (error.kind(), self) {
            (io::ErrorKind::AddrNotAvailable, HttpServer::Health) => {
                "set --healthz-ip to an address of this host (0.0.0.0: all of them)"
            }
            (io::ErrorKind::AddrNotAvailable, HttpServer::Api) => {
                "set --status-ip to an address of this host"
            }
            (io::ErrorKind::PermissionDenied, HttpServer::Health) => {
                "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher port with --healthz-port"
            }
            (_, HttpServer::Health) => "check --healthz-ip and --healthz-port",
            (_, HttpServer::Api) => "check --status-ip and --status-port (0: none)",
        }
    }
}

fn backend_not_taken(found: &str, required: &[String], at: &str) -> String {
    let found = if found.is_empty() { "(none)".into() } else { printable::value(found) };
    format!(
        "this node does not accept backend type {found} (--require-backend={}); set Backend.Type in the network configuration to {}, in {at}. To use {found}, change --require-backend on this node",
        required.join(","),
        required.join(" or "),
    )
}

pub(crate) fn joined(items: impl IntoIterator<Item: ToString>, by: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(by)
}

pub(crate) fn problem(code: &'static str, text: String) -> Problem {
    Problem { code: code.into(), ..Problem::in_words(text) }
}

/// True for a missing or invalid network configuration.
pub fn is_about_config(problem: &Problem) -> bool {
    problem
        .details()
        .any(|detail| matches!(detail, Detail::ConfigMissing { .. } | Detail::ConfigInvalid { .. }))
}
