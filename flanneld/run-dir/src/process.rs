//! The processes of this PID namespace and their open sockets, from /proc.

use std::fmt;
use std::path::PathBuf;

/// Of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortHolder {
    /// The name and the id of the process; `None` if the caller may not see it, or it is in another PID namespace.
    pub process: Option<(String, i32)>,
    pub user: u32,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some((name, pid)) => write!(f, "{name:?} (pid {pid}, user {})", self.user),
            None => write!(
                f,
                "a program of user {} that flanneld may not see (as root, `ss -tulnp` shows it)",
                self.user
            ),
        }
    }
}

/// `None` if no program holds the port. Ports of the kernel's own tunnels have no holder.
pub fn port_holder(port: u16, udp: bool) -> Option<PortHolder> {
    let tables = if udp { ["udp", "udp6"] } else { ["tcp", "tcp6"] };
    let read = |table: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default()
    };
    let found: Vec<(u64, u32)> =
        tables.iter().flat_map(|table| holders(&read(table), port, udp)).collect();
    let user = found.first()?.1;
    let holds =
        |pid: &i32| sockets(*pid).any(|(inode, _)| found.iter().any(|(other, _)| *other == inode));
    let process = pids().find(holds).map(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        (name.trim().to_owned(), pid)
    });
    Some(PortHolder { process, user })
}

/// The inodes and users of the sockets on a port, from a table such as /proc/net/tcp. Excludes TCP sockets that do
/// not listen.
fn holders(table: &str, port: u16, udp: bool) -> Vec<(u64, u32)> {
    const LISTENS: &str = "0A";
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let local = u16::from_str_radix(words.get(1)?.rsplit_once(':')?.1, 16).ok()?;
        let inode = words.get(9)?.parse().ok().filter(|inode| *inode != 0)?;
        let listens = udp || *words.get(3)? == LISTENS;
        (local == port && listens).then_some((inode, words.get(7)?.parse().ok()?))
    };
    table.lines().skip(1).filter_map(line).collect()
}

/// In this PID namespace.
pub fn pids() -> impl Iterator<Item = i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
}

/// Each socket has its inode and its path in /proc/PID/fd. Empty if the caller has no permission to read the sockets.
pub fn sockets(pid: i32) -> impl Iterator<Item = (u64, PathBuf)> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.map(|file| file.path()).filter_map(|path| {
        let target = std::fs::read_link(&path).ok()?;
        let inode =
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()?;
        Some((inode, path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_held_by_listening_sockets_with_their_user() {
        let table = "head\n 0: 0100007F:1F90 0 06 0 0 0 1000 0 77\n 1: 00000000:1F90 0 0A 0 0 0 1000 0 78\n 2: 00000000:1F90 0 07 0 0 0 0 0 0\n short\n";
        assert_eq!(holders(table, 8080, false), [(78, 1000)]);
        assert_eq!(holders(table, 8080, true), [(77, 1000), (78, 1000)]);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let holder = port_holder(socket.local_addr().unwrap().port(), true).unwrap();
        assert_eq!(holder.user, nix::unistd::getuid().as_raw());
        // Until it execs, a child that another test starts holds this process's sockets, too.
        assert!(holder.process.is_some(), "{holder}");
    }
}
