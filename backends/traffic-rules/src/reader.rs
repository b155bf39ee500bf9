//! Reads the rules of this host, whichever program made them, and follows a packet through them.
//!
//! [`nft`] and [`iptables`] read listings into one [`model`]. [`walk`] answers what becomes of a [`packet`] on its way: it passes, it is dropped,
//! or perhaps. What is not understood is kept as unknown and never decides anything.

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
