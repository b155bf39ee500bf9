//! An unknown sender: a host without a lease that probes this node.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub first: Duration,
    pub last: Duration,
    /// The number in the sender's probes.
    pub who: u64,
}
