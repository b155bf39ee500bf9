//! WireGuard: peers with keys and allowed IPs, sessions, sealing and opening of packets. The crate `noise` implements the messages of the protocol
//! (handshakes, cookies, data). This module decides to which peer a packet belongs, and when a peer's timers are due. This
//! module keeps peer selection and timers cheap on the packet path.
//!
//! A [`Device`] has the same configuration as a WireGuard interface of the kernel: private key, peers and allowed
//! IPs. The configuration can change while packets flow. Packet threads use the last published snapshot and need no
//! lock. Packet threads do not wait for handshakes. Threads that encrypt packets do not wait for threads that decrypt packets, or vice versa.
//! [`Device::work`] does all slow work, mainly handshakes. Only the handshake thread calls [`Device::work`].

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
