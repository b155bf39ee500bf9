//! The lock that daemons take before they write rules, so that the rules do not change between their read and their write.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;
use tokio::time::Instant;

/// The prefix of the lock's abstract socket name. The socket lives in the same network namespace as the rules.
const SOCKET_PREFIX: &str = "flannel-rs.rules";
/// The interval between attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longer than one write may take. A holder that takes longer is stuck.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The lock, held until it is dropped or the process ends. After the timeout the caller goes on without it: a lost race is repaired later,
/// but a wait without end is not.
#[derive(Debug)]
pub struct RulesLock {
    _socket: Option<UnixListener>,
}

/// Takes the lock for one program. Each program has its own, so that waiting for the xtables lock does not delay nftables.
pub async fn acquire(program: &str) -> RulesLock {
    let started = Instant::now();
    let Ok(address) = SocketAddr::from_abstract_name(format!("{SOCKET_PREFIX}/{program}")) else { return RulesLock { _socket: None } };
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(socket) => return RulesLock { _socket: Some(socket) },
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && started.elapsed() < TIMEOUT => tokio::time::sleep(POLL_INTERVAL).await,
            Err(error) => {
                tracing::debug!("writing rules without the lock: {error}");
                return RulesLock { _socket: None };
            }
        }
    }
}
