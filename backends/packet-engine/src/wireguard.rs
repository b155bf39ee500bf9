//! WireGuard: peers with keys and allowed IPs, sessions, sealing and opening of packets. The protocol itself (Noise, cookies, its timers) is
//! the crate `noise`'s; this module decides whose packet it is and when a peer needs attention, and keeps the cost of both off the packet path.
//!
//! [`Device`] is set up like the kernel's: a private key, peers, allowed IPs, while packets flow. Threads that move packets use what it published
//! last, and no lock, so that neither direction of a peer waits for the other or for a handshake. Everything slow, handshakes above all, is left to [`Device::work`], which one thread calls.

mod admission;
mod allowance;
mod copies;
mod device;
mod handshake;
mod identity;
mod keypair;
mod link;
mod message;
mod open;
mod peer;
mod pending;
mod routes;
mod seal;
mod snapshot;
mod traffic;
mod visit;
mod work;

pub use device::{Change, Device};
pub(crate) use message::tos;
pub use open::Opener;
pub use peer::{PeerState, PeerStatus};
pub use seal::{Sealer, SendState};
pub use snapshot::Snapshot;
pub use types::wireguard::{PublicKey, Secret};
pub use work::{Transmit, Worker};

#[cfg(test)]
mod tests;
