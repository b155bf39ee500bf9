//! Reads the rules of all programs on this host, and follows a packet through these rules.
//!
//! [`nft`] and [`iptables`] read listings into one [`model`]. [`walk`] determines the fate of a [`packet`]:
//! the host accepts it, the host drops it, or the fate is unknown. The reader keeps conditions that it does
//! not understand as unknown, and never bases a decision on them.

pub mod fits;
pub mod iptables;
pub mod model;
pub mod nft;
pub mod packet;
pub mod ranges;
#[cfg(test)]
mod tests;
pub mod walk;
mod words;

pub use fits::Fits;
pub use model::{Hook, Layer, Rules};
pub use packet::{Device, HookPath, Packet};
pub use ranges::Ranges;
pub use walk::{Fate, Stop, Walk};
pub use words::state;
