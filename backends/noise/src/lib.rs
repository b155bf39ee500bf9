//! WireGuard's handshakes and sessions, without clock, sockets or peers. Time, random bytes and keys are
//! arguments, so each message depends only on these.
//!
//! The protocol follows the paper by Donenfeld, *WireGuard: Next Generation Kernel Network Tunnel* (2020),
//! section 5.4. Where the paper leaves a choice, this crate follows the Linux kernel (drivers/net/wireguard).

mod cookie;
mod crypto;
mod error;
mod handshake;
mod identity;
mod message;
mod session;
mod stamp;
mod window;

pub use cookie::{Baker, Jar};
pub use crypto::KEY;
pub use error::NoiseError;
pub use handshake::{Asked, Half, Initiated, initiate};
pub use identity::{Identity, Remote};
pub use message::{CookieReply, Initiation, Kind, Response};
pub use session::{OVERHEAD, Session};
pub use stamp::Stamp;

#[cfg(test)]
mod tests;
