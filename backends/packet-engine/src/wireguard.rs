//! WireGuard: peers with keys and allowed IPs, sessions, sealing and opening of packets. The crate `noise`
//! implements the messages of the protocol (handshakes, cookies, data). This module selects the peer of a
//! packet and runs the peers' timers, cheaply on the packet path.
//!
//! A [`Device`] is configured like a WireGuard interface of the kernel: private key, peers and allowed IPs.
//! This can change while packets flow. Packet threads use the last published snapshot and need no lock; they
//! do not wait for handshakes. Threads that encrypt and threads that decrypt do not wait for each other. All
//! slow work, mainly handshakes, is in [`Device::work`], which only the handshake thread calls.

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
