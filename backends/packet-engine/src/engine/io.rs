//! Traits of the devices and sockets that the engine's threads use, so that tests can inject errors.

use crate::socket::{Message, Piece, Receiver, Sender, Socket};
use crate::tun::{Offload, Tun};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

/// A queue of the TUN device.
pub(super) trait Device: AsFd {
    /// What the kernel granted.
    fn offload(&self) -> Offload;
    /// Reads one packet and returns its length in bytes; `WouldBlock` if none waits.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes one packet from its parts, in one system call.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Device for Tun {
    fn offload(&self) -> Offload {
        Tun::offload(self)
    }

    #[inline]
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Tun::read_frame(self, buffer)
    }

    #[inline]
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Tun::write_frame(self, parts)
    }
}

pub(super) trait Port: AsFd {
    fn is_ipv6(&self) -> bool;
    /// Fills at most `most` receive buffers and returns their number. `WouldBlock` if no datagram waits.
    fn receive(&self, receiver: &mut Receiver, most: usize) -> io::Result<usize>;
    /// Returns the number of sent messages, and the error of the next one.
    fn send(
        &self,
        sender: &mut Sender,
        messages: &[Message],
        pieces: &[Piece],
        made: &[u8],
        read: &[u8],
    ) -> (usize, Option<io::Error>);
}

impl Port for Socket {
    fn is_ipv6(&self) -> bool {
        Socket::is_ipv6(self)
    }

    #[inline]
    fn receive(&self, receiver: &mut Receiver, most: usize) -> io::Result<usize> {
        receiver.receive(self, most)
    }

    #[inline]
    fn send(
        &self,
        sender: &mut Sender,
        messages: &[Message],
        pieces: &[Piece],
        made: &[u8],
        read: &[u8],
    ) -> (usize, Option<io::Error>) {
        sender.send(self, messages, pieces, made, read)
    }
}
