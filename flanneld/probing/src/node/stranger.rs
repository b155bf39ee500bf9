//! An unknown sender: a host without a lease that probes this node.

use std::time::Duration;

/// When it first and last probed this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub first: Duration,
    pub last: Duration,
    /// The number that it claims to have.
    pub who: u64,
}
