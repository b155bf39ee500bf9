//! Reads the iptables and nftables rules of all programs on this host, and follows a packet through the rules.
//!
//! [`nft`] and [`iptables`] read listings into one [`model`]. [`walk`] determines the result for a [`packet`]: the host
//! accepts the packet, the host drops the packet, or the result is unknown. The reader records a condition that it does not
//! understand as unknown, and never bases a decision on this condition.

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
