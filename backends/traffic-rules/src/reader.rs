//! Reads the iptables and nftables rules of all programs on this host, and follows a packet through
//! them.
//!
//! [`nft`] and [`iptables`] read listings into one [`model`]. [`walk`] determines the result for a
//! [`packet`]: accepted, dropped or unknown. A condition that the reader does not understand is
//! recorded as unknown and never decides.

pub mod fits;
pub mod iptables;
pub mod model;
pub mod nft;
pub mod packet;
pub mod ranges;
#[cfg(test)]
mod tests;
pub mod walk;
pub(crate) mod words;

pub use fits::Fits;
pub use model::{Hook, Layer, Rules};
pub use packet::{Device, HookPath, Packet};
pub use ranges::Ranges;
pub use walk::{Fate, Stop, Walk};
pub use words::state;
