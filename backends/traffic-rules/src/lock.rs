//! The lock that a daemon takes before it writes rules, so that no other daemon changes them
//! between its read and its write.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, getsockopt};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;
use tokio::time::Instant;

/// An abstract socket's name. The socket and the rules are in one network namespace.
const SOCKET_PREFIX: &str = "flannel-rs.rules";
/// The pause between attempts to take the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longer than any write of rules: a daemon that holds the lock longer hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Held until it is dropped or the process ends. After the timeout, the caller continues without
/// the lock: flanneld can repair damaged rules later, but cannot recover from an endless wait.
#[derive(Debug)]
pub struct RulesLock {
    _socket: Option<UnixListener>,
}

/// Consecutive attempts to identify the lock's holder as root or this process's user, before the
/// lock is ignored. The holder is unknown between its calls of bind and listen.
const MAX_FOREIGN_HOLDERS: u32 = 3;

/// iptables and nft have separate locks, so that a wait for the xtables lock does not delay
/// nftables. A lock that another user holds, except root, is ignored.
pub async fn acquire(program: &str) -> RulesLock {
    acquire_within(&format!("{SOCKET_PREFIX}/{program}"), TIMEOUT).await
}

async fn acquire_within(name: &str, timeout: Duration) -> RulesLock {
    let started = Instant::now();
    let Ok(address) = SocketAddr::from_abstract_name(name) else {
        return RulesLock { _socket: None };
    };
    let mut foreign_holders = 0;
    // Each connection stays in the holder's backlog. Once the holder is known, no more connections are made.
    let mut known = false;
    loop {
        let error = match UnixListener::bind_addr(&address) {
            Ok(socket) => {
                return RulesLock { _socket: Some(socket) };
            }
            Err(error) => error,
        };
        let taken = error.kind() == std::io::ErrorKind::AddrInUse;
        known = known || taken && is_ours(name);
        foreign_holders = if taken && !known { foreign_holders + 1 } else { 0 };
        if foreign_holders >= MAX_FOREIGN_HOLDERS {
            tracing::debug!(
                name,
                "ignoring a lock that may belong to another user: writing rules without it"
            );
            return RulesLock { _socket: None };
        }
        if !taken || started.elapsed() >= timeout {
            tracing::debug!(name, error = %error, "writing rules without the lock");
            return RulesLock { _socket: None };
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Root or the user of this process listens on the abstract socket.
fn is_ours(name: &str) -> bool {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let user = || {
        let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
        socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).ok()?).ok()?;
        Some(getsockopt(&socket, PeerCredentials).ok()?.uid())
    };
    user().is_some_and(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lock_without_listener_is_ignored_and_own_lock_is_awaited() {
        const SHORT: Duration = Duration::from_millis(300);
        let name = format!("{SOCKET_PREFIX}/test-{}", std::process::id());
        let first = acquire_within(&name, TIMEOUT).await;
        let begun = Instant::now();
        assert!(acquire_within(&name, SHORT).await._socket.is_none() && begun.elapsed() >= SHORT);
        // Each connection stays in the holder's backlog, and a full backlog accepts no more.
        let holder = first._socket.as_ref().unwrap();
        holder.set_nonblocking(true).unwrap();
        assert_eq!(std::iter::from_fn(|| holder.accept().ok()).count(), 1);
        drop(first);
        // Bound but not listening, so its user is unknown. Another user can hold the lock like this forever.
        let bound =
            socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
                .unwrap();
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        // A program that another test starts has a copy of the first holder's socket until its exec.
        let begun = Instant::now();
        while let Err(error) = socket::bind(bound.as_raw_fd(), &address) {
            assert!(begun.elapsed() < TIMEOUT, "{error}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let begun = Instant::now();
        assert!(
            acquire_within(&name, TIMEOUT).await._socket.is_none() && begun.elapsed() < TIMEOUT
        );
    }
}
