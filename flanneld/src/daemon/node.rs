//! A node with a lease, and the state from which the node acquired the lease.

use crate::underlay::Found;
use backends::{Announced, Backend};
use std::sync::Arc;
use subnet_lease::admission::History;
use subnet_lease::manager::{Claim, Held, SubnetManager};
use subnet_lease::{Lease, NetworkConfig};
use tokio::sync::watch;

/// The backend has not joined the network yet.
pub(super) struct Node {
    pub backend: Box<dyn Backend>,
    pub leased: Leased,
}

/// A lease, with the store, configuration, claim and underlay on which it depends.
pub(super) struct Leased {
    pub manager: Arc<dyn SubnetManager>,
    pub whole: NetworkConfig,
    /// Without the address families that this node lacks.
    pub config: NetworkConfig,
    pub claim: Claim,
    pub found: Found,
    pub announced: Announced,
    pub lease: Lease,
    /// Who had which MAC or key before this run.
    pub history: Arc<History>,
    pub held: (watch::Sender<Held>, watch::Receiver<Held>),
}
