//! Finds the process that uses a port.

use run_dir::process;

/// Returns the name and pid of the process that uses a port of this network namespace; `None` if the process is unknown.
///
/// The process is unknown if the caller may not read the process's sockets, or if the process runs in another pid namespace.
pub fn owner(port: u16, udp: bool) -> Option<String> {
    let tables = if udp {
        ["udp", "udp6"]
    } else {
        ["tcp", "tcp6"]
    };
    let read = |table: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default()
    };
    let inodes: Vec<u64> = tables
        .iter()
        .flat_map(|table| inodes(&read(table), port, udp))
        .collect();
    let holds = |pid: &i32| process::sockets(*pid).any(|(inode, _)| inodes.contains(&inode));
    let pid = process::pids().filter(|_| !inodes.is_empty()).find(holds)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("{} (pid {pid})", name.trim()))
}

/// Returns the inodes of the sockets that use a port, from a table such as /proc/net/tcp. Excludes TCP sockets that do not listen.
fn inodes(table: &str, port: u16, udp: bool) -> Vec<u64> {
    const LISTENS: &str = "0A";
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let local = u16::from_str_radix(words.get(1)?.rsplit_once(':')?.1, 16).ok()?;
        let listens = udp || *words.get(3)? == LISTENS;
        (local == port && listens)
            .then(|| words.get(9)?.parse().ok())
            .flatten()
    };
    table.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn process_is_found_by_its_port() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
        let us = format!("(pid {})", std::process::id());
        for (port, udp) in [
            (socket.local_addr().unwrap().port(), true),
            (listener.local_addr().unwrap().port(), false),
        ] {
            // If another test forks at the same time, its child also has the socket until it calls exec.
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut found = owner(port, udp).unwrap();
            while !found.ends_with(&us) && Instant::now() < deadline {
                found = owner(port, udp).unwrap();
            }
            assert!(found.ends_with(&us), "{found}");
        }
        assert_eq!(
            inodes(
                "head\n  0: 0100007F:1F90 0 06 0 0 0 0 0 77\n  short\n",
                8080,
                false
            ),
            Vec::<u64>::new()
        );
    }
}
