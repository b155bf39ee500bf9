//! Abstract sockets by which the daemons in a network namespace discover each other. They vanish when their process ends.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, getsockopt};
use std::os::fd::AsRawFd;

/// Prefix of the names of the daemons' sockets.
pub const SOCKETS: &str = "flannel-rs/";

/// Prefix of the names of the sockets for host resources that a daemon holds.
pub const TAKEN: &str = "flannel-rs.taken/";
/// Prefix of the names of the sockets of ports that a daemon leaves to any tunnel.
pub const LENT: &str = "flannel-rs.lent/";
/// Prefix of the names of the sockets for guard slots.
pub const GUARDS: &str = "flannel-rs.guard/";

/// The names of our daemons' sockets in this network namespace.
pub fn sockets() -> Vec<String> {
    named(SOCKETS)
}

/// The names of the abstract sockets in this network namespace with a given prefix.
pub fn named(start: &str) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    // A name may contain blanks: two networks are joined by " and ".
    let names = table.lines().filter_map(|line| line.split_once(&format!(" @{start}")).map(|(_, rest)| format!("{start}{rest}")));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Describes the process that listens on a socket.
pub fn listener(name: &[u8]) -> String {
    match peer(name).map(|peer| peer.pid()) {
        Some(pid) if pid > 0 => process(pid),
        Some(_) => "a process in another pid namespace".to_owned(),
        None => "its pid cannot be read".to_owned(),
    }
}

/// The pid of the listener. No connection is ever accepted: with a full backlog, a blocking call would wait forever.
pub fn peer(name: &[u8]) -> Option<UnixCredentials> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name).ok()?).ok()?;
    getsockopt(&socket, PeerCredentials).ok()
}

/// Describes a process: pid and command.
pub fn process(pid: i32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("pid {pid}, {}", name.trim()),
        Err(_) => format!("pid {pid}"),
    }
}

/// Describes the owner of a socket and the network it serves.
pub fn owner(name: &[u8]) -> String {
    let Some(pid) = peer(name).map(|peer| peer.pid()).filter(|pid| *pid > 0) else { return listener(name) };
    let same = |socket: &&String| peer(socket.as_bytes()).is_some_and(|peer| peer.pid() == pid);
    match sockets().iter().find(same).and_then(|socket| socket.strip_prefix(SOCKETS)?.rsplit_once('/')) {
        Some((network, _)) => format!("{}, network {network}", process(pid)),
        None => process(pid),
    }
}
