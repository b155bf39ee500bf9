//! One daemon at a time: what one of them writes rests on what it has just seen.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;
use tokio::time::Instant;

/// What begins the names of the abstract sockets that whoever writes rules has; their network namespace is that of the rules.
const SOCKETS: &str = "flannel-rs.rules";
/// How often it is tried.
const AGAIN: Duration = Duration::from_millis(10);
/// Longer than the programs of one write may take; who holds it for longer stands still.
const PATIENCE: Duration = Duration::from_secs(30);

/// The right to write rules, until it is dropped or the process ends. Without it, work is done all the same: losing a race is repaired, and
/// waiting for ever is not.
#[derive(Debug)]
pub struct Turn {
    _socket: Option<UnixListener>,
}

/// Waits for the right to write the rules of one program: who waits for xtables' lock holds up nobody who does not need it.
pub async fn take(program: &str) -> Turn {
    let begun = Instant::now();
    let Ok(address) = SocketAddr::from_abstract_name(format!("{SOCKETS}/{program}")) else { return Turn { _socket: None } };
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(socket) => return Turn { _socket: Some(socket) },
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && begun.elapsed() < PATIENCE => tokio::time::sleep(AGAIN).await,
            Err(error) => {
                tracing::debug!("rules are written without waiting for other daemons: {error}");
                return Turn { _socket: None };
            }
        }
    }
}
