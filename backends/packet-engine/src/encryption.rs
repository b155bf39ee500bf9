//! What the engine requires of a protocol that encrypts its packets. The engine itself knows no protocol.
//!
//! The calls are dynamic: a few for each packet cost nanoseconds, its encryption a microsecond.

use crate::drop_error::DropError;
use crate::packet::Header;
use crate::socket::endpoint::Endpoint;
use crate::verdict::RejectError;
use std::ops::Range;

/// Keys, peers and sessions, for all threads of an engine.
pub trait Encryption: Send + Sync {
    /// Calls `gather` once, with the configuration of this moment. What was sealed is counted when it
    /// returns.
    fn seal_batch(&self, gather: &mut dyn FnMut(&mut dyn Seal));

    /// Calls `merge` once, with the configuration of this moment. What was opened is counted when it returns.
    fn open_batch(&self, merge: &mut dyn FnMut(&mut dyn Open));

    /// Stops sending from source addresses that the kernel refused.
    fn forget_sources(&self, refused: &[Endpoint]);

    /// The name of the thread that calls [`Encryption::run`].
    fn thread_name(&self) -> &'static str;

    /// Sends what is due beside the packets, such as handshakes, until `is_ended`. [`Encryption::ring`] must
    /// follow the end, because the thread may sleep.
    fn run(&self, is_ended: &dyn Fn() -> bool, send: Transmit<'_>);

    /// Wakes the thread that sleeps in [`Encryption::run`].
    fn ring(&self);
}

/// Sends a datagram with a TOS octet, or gives the reason for a failure.
pub type Transmit<'s> = &'s mut dyn FnMut(Endpoint, &[u8], u8) -> Result<(), DropError>;

/// Seals the packets of one batch.
pub trait Seal {
    /// Chooses the peer of a packet, for all its segments. `longest` is the longest segment in bytes. The
    /// error is the reason to drop the packet, and an ICMP error for its sender.
    fn select_peer(
        &mut self,
        header: &Header,
        packet: &[u8],
        longest: usize,
    ) -> Result<SendState, RejectError>;

    /// Where in a datagram the bytes of a packet and its padding belong.
    fn place(&self, length: usize) -> Range<usize>;

    /// Seals the padded packet that is at its [`Seal::place`], for the selected peer. False if it fails.
    fn seal(&mut self, datagram: &mut [u8]) -> bool;

    /// Queues a padded packet until the selected peer has a session. Returns how many packets were dropped
    /// for it.
    fn park(&mut self, plain: &[u8]) -> usize;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// Sealed packets go to this endpoint.
    Ready(Endpoint),
    /// Packets wait in a queue.
    AwaitingSession,
}

/// Opens the datagrams of one batch.
pub trait Open {
    /// Opens a datagram in place, so that the packet is at its beginning. `None` if the datagram holds no
    /// packet for this host.
    fn open(&mut self, datagram: &mut [u8], from: Endpoint) -> Result<Option<Header>, DropError>;
}
