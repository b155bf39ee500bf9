//! Socket options and registration with the runtime, which have no safe wrapper.

#![allow(unsafe_code)]

use socket2::Socket;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use types::Family;

/// Sets a socket option whose value is one C int.
fn set(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: the option's value is one int, which lives until the call returns.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(super) fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: the socket owns its descriptor, always returns the same one, and closes it only when it is dropped with the registration.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?)
}

/// Forbids fragmentation and ignores the cached path MTU, because the probes have to determine the packet size that the path carries.
pub(super) fn do_not_fragment(fd: BorrowedFd<'_>, family: Family) -> io::Result<()> {
    if family.is_v6() {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        return set(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1);
    }
    set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
}
