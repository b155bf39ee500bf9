//! Abstract sockets by which the daemons in a network namespace discover each other. The kernel removes a socket when
//! its process ends.

use super::names::{self, Name};
use super::peer::peer;
use std::fmt;

/// Prefix of the names of the daemons' sockets.
pub(super) const SOCKETS: &str = "flannel-rs/";

/// Prefix for host resources that a daemon holds.
pub(super) const TAKEN: &str = "flannel-rs.taken/";
/// Prefix for UDP ports that a daemon uses only until a tunnel needs the port.
pub(super) const LENT: &str = "flannel-rs.lent/";
/// Prefix for slots of traffic rules. Before, only the rules that guard an encapsulation port had one, and daemons of
/// that version may still run.
pub(super) const SLOTS: &str = "flannel-rs.guard/";

/// The sockets of flannel-rs daemons in this network namespace.
pub(super) fn sockets() -> Vec<Name> {
    names::named(SOCKETS, "would have looked like a daemon of that network")
}

/// The sockets that reserve slots, of all flannel-rs daemons in this network namespace.
pub(super) fn slot_names() -> Vec<Name> {
    names::named(SLOTS, "would have prevented the removal of an ended daemon's rules")
}

/// From the name of a socket.
pub(super) fn slot_of(name: &Name) -> Option<u16> {
    name.base().strip_prefix(SLOTS)?.parse().ok()
}

/// Process that holds a claim or a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    /// A process of this pid namespace.
    Process {
        pid: i32,
        /// If it is readable.
        program: Option<String>,
        /// The network that the process serves, if known.
        network: Option<String>,
    },
    /// A process of another pid namespace.
    Elsewhere,
    /// This process cannot read the pid.
    Unknown,
}

impl Holder {
    pub(super) fn of(pid: i32) -> Self {
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .ok()
            .map(|name| name.trim().to_owned());
        Self::Process { pid, program, network: None }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, program, network } => {
                write!(f, "pid {pid}")?;
                if let Some(program) = program {
                    write!(f, ", {program}")?;
                }
                network.as_ref().map_or(Ok(()), |network| write!(f, ", network {network}"))
            }
            Self::Elsewhere => f.write_str("a process in another pid namespace"),
            Self::Unknown => f.write_str("unreadable pid"),
        }
    }
}

/// The process that listens on a socket.
pub(super) fn listener(name: &Name) -> Holder {
    match peer(name.raw.as_bytes()).map(|peer| peer.pid()) {
        Some(pid) if pid > 0 => Holder::of(pid),
        Some(_) => Holder::Elsewhere,
        None => Holder::Unknown,
    }
}

/// The process that listens on a socket, with the network it serves.
pub(super) fn owner(name: &Name) -> Holder {
    let pid = |name: &Name| peer(name.raw.as_bytes()).map(|peer| peer.pid()).filter(|pid| *pid > 0);
    let Some(own) = pid(name) else {
        return listener(name);
    };
    let serves = sockets().iter().find(|socket| pid(socket) == Some(own)).and_then(|socket| {
        let (network, _) = socket.base().strip_prefix(SOCKETS)?.rsplit_once('/')?;
        Some(network.to_owned())
    });
    match Holder::of(own) {
        Holder::Process { pid, program, .. } => Holder::Process { pid, program, network: serves },
        other => other,
    }
}
