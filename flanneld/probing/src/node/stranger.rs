//! What is remembered of a host without a lease that asks for this node.

use std::time::Duration;

/// When it asked first, and last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub first: Duration,
    pub last: Duration,
    /// The number that it gives as its own.
    pub who: u64,
}
