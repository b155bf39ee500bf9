//! Abstract sockets by which daemons of one network namespace know of each other: they vanish with their process, however it ends.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, getsockopt};
use std::os::fd::AsRawFd;

/// What begins the names of the abstract sockets.
pub const SOCKETS: &str = "flannel-rs/";

/// What begins the names of the sockets for what a daemon takes of the host.
pub const TAKEN: &str = "flannel-rs.taken/";
/// What begins the names of the sockets for the places of guards.
pub const GUARDS: &str = "flannel-rs.guard/";

/// The names of our daemons' sockets in this network namespace.
pub fn sockets() -> Vec<String> {
    named(SOCKETS)
}

/// The names of the abstract sockets in this network namespace that begin so.
pub fn named(start: &str) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    // A name may have blanks in it: two networks are joined by " and ".
    let names = table.lines().filter_map(|line| line.split_once(&format!(" @{start}")).map(|(_, rest)| format!("{start}{rest}")));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Who listens on a socket, in words.
pub fn listener(name: &[u8]) -> String {
    match peer(name).map(|peer| peer.pid()) {
        Some(pid) if pid > 0 => process(pid),
        Some(_) => "a process in another pid namespace".to_owned(),
        None => "its pid cannot be read".to_owned(),
    }
}

/// The listener's credentials. Nobody accepts there: once enough have asked, a blocking call would wait for ever.
pub fn peer(name: &[u8]) -> Option<UnixCredentials> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name).ok()?).ok()?;
    getsockopt(&socket, PeerCredentials).ok()
}

/// A process in words: pid and command.
pub fn process(pid: i32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("pid {pid}, {}", name.trim()),
        Err(_) => format!("pid {pid}"),
    }
}

/// Who has a socket, and which network it serves, in words.
pub fn owner(name: &[u8]) -> String {
    let Some(pid) = peer(name).map(|peer| peer.pid()).filter(|pid| *pid > 0) else { return listener(name) };
    let same = |socket: &&String| peer(socket.as_bytes()).is_some_and(|peer| peer.pid() == pid);
    match sockets().iter().find(same).and_then(|socket| socket.strip_prefix(SOCKETS)?.rsplit_once('/')) {
        Some((network, _)) => format!("{}, network {network}", process(pid)),
        None => process(pid),
    }
}
