//! A node with a lease, and everything that led to it.

use crate::underlay::Found;
use backends::{Announced, Backend};
use std::sync::Arc;
use subnet_lease::manager::{Claim, Held, SubnetManager};
use subnet_lease::{Lease, NetworkConfig};
use tokio::sync::watch;

/// A node with a lease.
pub(super) struct Node {
    pub manager: Arc<dyn SubnetManager>,
    /// The network's configuration.
    pub whole: NetworkConfig,
    /// The same without the families that this node lacks.
    pub config: NetworkConfig,
    pub claim: Claim,
    pub found: Found,
    pub announced: Announced,
    pub lease: Lease,
    pub backend: Box<dyn Backend>,
    /// The state of the lease.
    pub held: (watch::Sender<Held>, watch::Receiver<Held>),
}
