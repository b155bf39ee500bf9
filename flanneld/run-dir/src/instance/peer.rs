//! Who listens on an abstract socket.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, getsockopt,
};
use std::os::fd::AsRawFd;

/// The process and the user of the listener. No connection is ever accepted: with a full backlog, a blocking call would wait forever.
pub(super) fn peer(name: &[u8]) -> Option<UnixCredentials> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name).ok()?).ok()?;
    getsockopt(&socket, PeerCredentials).ok()
}
