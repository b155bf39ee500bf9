//! The process that listens on an abstract socket.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, getsockopt,
};
use std::os::fd::AsRawFd;

/// The pid and the user of the process that listens on an abstract socket. Connects without blocking: daemons never
/// accept connections, so the backlog may be full.
pub(super) fn peer(name: &[u8]) -> Option<UnixCredentials> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name).ok()?).ok()?;
    getsockopt(&socket, PeerCredentials).ok()
}
