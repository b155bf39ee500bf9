//! The lock that a daemon takes before it writes rules, so that no other daemon changes them
//! between its read and its write.

use std::fmt::Display;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

/// An abstract socket's name. The socket and the rules are in one network namespace.
const SOCKET_PREFIX: &str = "flannel-rs.rules";
/// The pause between attempts to take the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longer than any write of rules: a daemon that holds the lock longer hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Consecutive attempts to identify the lock's holder as root or this process's user, before the
/// lock is ignored. The holder is unknown between its calls of bind and listen.
const MAX_FOREIGN_HOLDERS: u32 = 3;

/// The lock is held until its socket is dropped or the process ends. After the timeout, the caller
/// continues without the lock: flanneld can repair damaged rules later, but cannot recover from an
/// endless wait.
///
/// iptables and nft have separate locks, so that a wait for the xtables lock does not delay
/// nftables. A lock that another user holds, except root, is ignored.
pub(crate) async fn acquire_lock(program: impl Display) -> Option<UnixListener> {
    let name = format!("{SOCKET_PREFIX}/{program}");
    let started = Instant::now();
    let path = format!("\0{name}");
    let mut foreign_holders = 0;
    // Each connection stays in the holder's backlog. Once the holder is known, no more connections are made.
    let mut known = false;
    loop {
        let error = match UnixListener::bind(&path) {
            Ok(socket) => return Some(socket),
            Err(error) => error,
        };
        let taken = error.kind() == std::io::ErrorKind::AddrInUse;
        known = known || taken && is_ours(&path).await;
        foreign_holders = if taken && !known { foreign_holders + 1 } else { 0 };
        if foreign_holders >= MAX_FOREIGN_HOLDERS {
            tracing::debug!(
                name,
                "ignoring a lock that may belong to another user: writing rules without it"
            );
            return None;
        }
        if !taken || started.elapsed() >= TIMEOUT {
            tracing::debug!(name, error = %error, "writing rules without the lock");
            return None;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Root or the user of this process listens on the abstract socket.
async fn is_ours(path: &str) -> bool {
    let holder = UnixStream::connect(path).await.and_then(|socket| socket.peer_cred());
    holder.is_ok_and(|user| user.uid() == 0 || user.uid() == nix::unistd::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
    use std::os::fd::AsRawFd;

    #[tokio::test(start_paused = true)]
    async fn lock_without_listener_is_ignored_and_own_lock_is_awaited() {
        let program = format!("test-{}", std::process::id());
        let first = acquire_lock(&program).await;
        let begun = Instant::now();
        assert!(acquire_lock(&program).await.is_none() && begun.elapsed() >= TIMEOUT);
        // Each connection stays in the holder's backlog, and a full backlog accepts no more.
        let holder = first.unwrap().into_std().unwrap();
        assert_eq!(std::iter::from_fn(|| holder.accept().ok()).count(), 1);
        drop(holder);
        // Bound but not listening, so its user is unknown. Another user can hold the lock like this forever.
        let bound =
            socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
                .unwrap();
        let name = format!("{SOCKET_PREFIX}/{program}");
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        // A program that another test starts has a copy of the first holder's socket until its exec.
        let begun = std::time::Instant::now();
        while let Err(error) = socket::bind(bound.as_raw_fd(), &address) {
            assert!(begun.elapsed() < TIMEOUT, "{error}");
            std::thread::sleep(POLL_INTERVAL);
        }
        let begun = Instant::now();
        assert!(acquire_lock(&program).await.is_none() && begun.elapsed() < TIMEOUT);
    }
}
