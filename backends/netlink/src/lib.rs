//! Netlink: the messages, the sockets, and the kernel's links, addresses, routes and neighbours.
//!
//! The kernel handles a request while the program sends it, so all answers wait in the socket when
//! the send returns. A [`Client`] therefore needs no runtime. Only a [`Subscription`] waits.
//!
//! ```
//! use netlink::Client;
//! use netlink::link::{self, Link};
//!
//! # fn main() -> Result<(), netlink::KernelError> {
//! let mut client = Client::open()?;
//! let names = client.dump(&link::all_links(), |message| Some(Link::decode(message)?.name.to_owned()))?;
//! assert!(names.contains(&"lo".to_owned()));
//! # Ok(())
//! # }
//! ```

pub mod address;
mod blocking;
mod client;
mod error;
pub mod header;
pub mod link;
pub mod neighbor;
pub mod route;
#[cfg(feature = "tokio")]
mod subscription;
pub mod uapi;
pub mod wire;

pub use blocking::run_blocking;
pub use client::{Answer, Client, Query, RequestError};
pub use error::{KernelError, kernel_refusal, kernel_silence, static_code};
#[cfg(feature = "tokio")]
pub use subscription::{Notified, Subscription};
pub use wire::{Message, Received};

use types::Family;

/// AF_INET or AF_INET6.
#[must_use]
pub fn family_number(family: impl Into<Family>) -> u8 {
    family.into().pick(uapi::AF_INET, uapi::AF_INET6)
}
