//! An unknown sender: a host without a lease that probes this node.

use std::time::Duration;

/// Times of an unknown sender's first and last probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub first: Duration,
    pub last: Duration,
    /// The number in the sender's probes.
    pub who: u64,
}
