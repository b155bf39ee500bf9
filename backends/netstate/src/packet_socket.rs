//! Packet socket (packet(7)) for whole frames of one link. To open the socket, a process needs `CAP_NET_RAW`.

#![allow(unsafe_code)]

use nix::libc;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// All protocols (linux/if_ether.h, ETH_P_ALL).
pub const EVERY_PROTOCOL: u16 = 3;

/// A non-blocking socket for the frames of one link with one EtherType, or with any EtherType.
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket for frames of the EtherType `ethertype` on the link with the index `link`.
    ///
    /// # Errors
    /// Returns an error if the kernel provides no packet socket, or if no link has the index.
    pub fn open(link: u32, ethertype: u16) -> io::Result<Self> {
        let protocol = ethertype.to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes only numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the struct consists of integers, so zero bytes are a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or_default();
        address.sll_protocol = protocol;
        address.sll_ifindex = i32::try_from(link).unwrap_or_default();
        let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
        // SAFETY: the pointer is to a whole `sockaddr_ll` of that length, which lives until the call returns.
        let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd })
    }

    /// Registers the socket with the Tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the runtime accepts no more descriptors.
    pub fn register(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the socket owns its descriptor, returns the same one each time, and closes it only when it is dropped with the registration.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }?)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Returns an error if the kernel does not accept the frame because the link is down or no longer exists.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        nix::sys::socket::send(self.fd.as_raw_fd(), frame, nix::sys::socket::MsgFlags::empty())?;
        Ok(())
    }

    /// Receives a frame, truncates the frame to the buffer's length, and returns the number of bytes in the buffer. Returns `None` if no frame is waiting.
    ///
    /// # Errors
    /// Returns an error if the link is down or no longer exists.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match nix::sys::socket::recv(
            self.fd.as_raw_fd(),
            frame,
            nix::sys::socket::MsgFlags::empty(),
        ) {
            Ok(length) => Ok(Some(length)),
            Err(error) if io::Error::from(error).kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Blocks the thread until a frame arrives, or at most for `time`. Returns whether a frame is waiting.
    ///
    /// # Errors
    /// Returns an error if poll(2) fails.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut wanted = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        Ok(poll(&mut wanted, time)? > 0)
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
