//! WireGuard for the packet engine: peers with keys and allowed IPs, sessions, sealing and opening of packets.
//! [`noise`] implements the messages of the protocol (handshakes, cookies, data). The rest selects the peer of
//! a packet and runs the peers' timers, cheaply on the packet path.
//!
//! A [`Device`] is configured like a WireGuard interface of the kernel: private key, peers and allowed IPs.
//! This can change while packets flow. Packet threads use the last published snapshot and need no lock; they
//! do not wait for handshakes. Threads that encrypt and threads that decrypt do not wait for each other. All
//! slow work, mainly handshakes, is in `Device::work`, which only the handshake thread calls.

#![warn(clippy::must_use_candidate)]

mod device;
mod encryption;
mod handshakes;
mod identity;
mod keypair;
mod link;
pub mod noise;
mod open;
mod peer;
mod seal;
mod snapshot;
mod traffic;

pub use device::{Change, Device, PeerError};
pub use encryption::FRAMING;
pub use peer::{PeerState, PeerStatus};
pub use types::wireguard::{PublicKey, Secret};

#[cfg(test)]
mod tests;
