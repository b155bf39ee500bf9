//! Packet socket (packet(7)) for whole frames of one link. To open the socket, a process needs `CAP_NET_RAW`.

#![allow(unsafe_code)]

use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// ETH_P_ALL (linux/if_ether.h).
pub const EVERY_PROTOCOL: u16 = 3;

/// Non-blocking; for the frames of one link with one EtherType, or with any.
pub struct PacketSocket(Socket);

impl PacketSocket {
    /// `link` is the interface index.
    pub fn open(link: u32, ethertype: u16) -> io::Result<Self> {
        let protocol = ethertype.to_be();
        let number = Protocol::from(i32::from(protocol));
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), Some(number))?;
        // SAFETY: the struct consists of integers, so zero bytes are a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or_default();
        address.sll_protocol = protocol;
        address.sll_ifindex = i32::try_from(link).map_err(io::Error::other)?;
        let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
        // SAFETY: the pointer is to a whole `sockaddr_ll` of that length, which lives until the call returns.
        let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(socket))
    }

    /// Registers the socket with the Tokio runtime.
    pub fn register(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the socket owns its descriptor, returns the same one each time, and closes it only when it is dropped with the registration.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }?)
    }

    /// Fails if the link is down or no longer exists.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.0.send(frame).map(drop)
    }

    /// The number of bytes in the buffer, to whose length the frame is truncated; `None` if no
    /// frame is waiting. Fails if the link is down or no longer exists.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.0).read(frame) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    /// Blocks the thread until a frame arrives, or at most for `time`. True if a frame is waiting.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut wanted = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        Ok(poll(&mut wanted, time)? > 0)
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
