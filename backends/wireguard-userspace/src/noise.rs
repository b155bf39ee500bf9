//! WireGuard's handshakes and sessions, without clock, sockets or peers. Time, random bytes and keys are
//! arguments, so each message depends only on these.
//!
//! The protocol follows the paper by Donenfeld, *WireGuard: Next Generation Kernel Network Tunnel* (2020),
//! section 5.4. Where the paper leaves a choice, this module follows the Linux kernel (drivers/net/wireguard).
//!
//! Here two nodes agree on a session, and A sends B a packet:
//!
//! ```
//! use wireguard_userspace::noise::{Identity, OVERHEAD, Remote, Stamp, UnprovenInitiation, begin_handshake};
//! use std::time::SystemTime;
//!
//! let (a, b) = (Identity::new(&[1; 32]), Identity::new(&[2; 32]));
//! let (to_b, to_a) = (Remote::new(&a, b.public())?, Remote::new(&b, a.public())?);
//! let (preshared, stamp) = ([0; 32], Stamp::after(None, SystemTime::now()));
//!
//! let (initiated, initiation) = begin_handshake(&a, &to_b, 7, stamp, &[3; 32])?;
//! let (asked, _) = UnprovenInitiation::read(&b, &initiation)?.prove(&to_a)?;
//! let (at_b, response) = asked.answer(&to_a, &preshared, 8, &[4; 32])?;
//! let at_a = initiated.complete(&a, &preshared, &response)?;
//!
//! let mut datagram = [0_u8; 5 + OVERHEAD];
//! datagram[16..21].copy_from_slice(b"hello");
//! at_a.seal(&mut datagram)?;
//! let length = at_b.open(&mut datagram)?;
//! assert_eq!(&datagram[..length], b"hello");
//! # Ok::<(), wireguard_userspace::noise::NoiseError>(())
//! ```

mod cookie;
mod crypto;
mod error;
mod handshake;
mod identity;
mod message;
mod session;
mod stamp;
mod window;

pub use cookie::{CookieChecker, PeerCookie};
pub use crypto::KEY;
pub use error::NoiseError;
pub use handshake::{Initiated, ProvenInitiation, UnprovenInitiation, begin_handshake};
pub use identity::{Identity, Remote};
pub use message::{CookieReply, Initiation, Kind, Response};
pub use session::{HEAD, OVERHEAD, Session};
pub use stamp::Stamp;

#[cfg(test)]
mod tests;
