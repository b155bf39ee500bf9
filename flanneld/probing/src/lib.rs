//! How nodes probe each other: each node asks its peers through the overlay network and beside it, and tells from the answers which way is
//! broken.
//!
//! What is decided is pure and has no runtime; sockets are behind the feature `prober`. `flannelctl` uses [`view`] and links no socket.

pub mod state;
pub mod view;
