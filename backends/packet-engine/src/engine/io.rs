//! What the threads of an engine read from and write to, as far as it can fail: tests put errors in its place.

use crate::socket::{Message, Piece, Receiver, Sender, Socket};
use crate::tun::{Offload, Tun};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

/// A queue of the TUN device.
pub trait Device: AsFd {
    /// What the kernel granted.
    fn offload(&self) -> Offload;
    /// Reads a packet.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes a packet.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Device for Tun {
    fn offload(&self) -> Offload {
        Tun::offload(self)
    }

    #[inline]
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Tun::read(self, buffer)
    }

    #[inline]
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Tun::write(self, parts)
    }
}

/// A UDP socket.
pub trait Port: AsFd {
    /// Receives what waits.
    fn receive(&self, receiver: &mut Receiver, most: usize) -> io::Result<usize>;
    /// Sends messages: how many, and why not the next.
    fn send(&self, sender: &mut Sender, messages: &[Message], pieces: &[Piece], made: &[u8], read: &[u8]) -> (usize, Option<io::Error>);
}

impl Port for Socket {
    #[inline]
    fn receive(&self, receiver: &mut Receiver, most: usize) -> io::Result<usize> {
        receiver.receive(self, most)
    }

    #[inline]
    fn send(&self, sender: &mut Sender, messages: &[Message], pieces: &[Piece], made: &[u8], read: &[u8]) -> (usize, Option<io::Error>) {
        sender.send(self, messages, pieces, made, read)
    }
}
