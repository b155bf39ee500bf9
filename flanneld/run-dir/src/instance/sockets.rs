//! Abstract sockets by which the daemons in a network namespace discover each other. They vanish when their process ends.

use super::names::{self, Name};
use super::peer::peer;

/// Prefix of the names of the daemons' sockets.
pub const SOCKETS: &str = "flannel-rs/";

/// Prefix of the names of the sockets for host resources that a daemon holds.
pub const TAKEN: &str = "flannel-rs.taken/";
/// Prefix of the names of the sockets of ports that a daemon leaves to any tunnel.
pub const LENT: &str = "flannel-rs.lent/";
/// Prefix of the names of the sockets for guard slots.
pub const GUARDS: &str = "flannel-rs.guard/";

/// The sockets of our daemons in this network namespace.
pub fn sockets() -> Vec<Name> {
    names::named(SOCKETS, "which would have passed for a daemon of that network")
}

/// Describes the process that listens on a socket.
pub fn listener(name: &Name) -> String {
    match peer(name.raw.as_bytes()).map(|peer| peer.pid()) {
        Some(pid) if pid > 0 => process(pid),
        Some(_) => "a process in another pid namespace".to_owned(),
        None => "its pid cannot be read".to_owned(),
    }
}

/// Describes a process: pid and command.
pub fn process(pid: i32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("pid {pid}, {}", name.trim()),
        Err(_) => format!("pid {pid}"),
    }
}

/// Describes the owner of a socket and the network it serves.
pub fn owner(name: &Name) -> String {
    let pid = |name: &Name| peer(name.raw.as_bytes()).map(|peer| peer.pid()).filter(|pid| *pid > 0);
    let Some(own) = pid(name) else { return listener(name) };
    match sockets().iter().find(|socket| pid(socket) == Some(own)).and_then(|socket| socket.base().strip_prefix(SOCKETS)?.rsplit_once('/')) {
        Some((network, _)) => format!("{}, network {network}", process(own)),
        None => process(own),
    }
}
