//! Finds the process that uses a port.

use run_dir::process;

/// The name and pid of the process that uses a port of this network namespace.
///
/// `None` if the caller may not read the process's sockets, or if the process runs in another pid namespace.
pub fn owner(port: u16, udp: bool) -> Option<String> {
    let (name, pid) = process::port_holder(port, udp)?.process?;
    Some(format!("{name} (pid {pid})"))
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
    }
}
