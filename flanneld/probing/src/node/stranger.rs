//! An unknown sender: a host without a lease that probes this node.

use std::time::Duration;

/// Times of the sender's first and last probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub first: Duration,
    pub last: Duration,
    /// The number that the sender claims to have.
    pub who: u64,
}
