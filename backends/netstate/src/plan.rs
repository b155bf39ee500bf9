//! What a kernel backend is: which objects are ours, what the node needs by itself, and what each peer needs.

use crate::forwarding::Forwarding;
use crate::kernel::Facts;
use crate::object::{KernelState, Key, Value};
use crate::scope::Scope;
use subnet_lease::{Kinds, LeaseTable, Peer, RawJson, Subnets};

/// What the world is told: the lease's attributes (without addresses and node, which the daemon adds) and the pods' MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The backend's wire name, empty for `udp` and `alloc`.
    pub backend: String,
    /// The backend's IPv4 data.
    pub data: Option<RawJson>,
    /// The backend's IPv6 data.
    pub v6_data: Option<RawJson>,
    /// FLANNEL_MTU.
    pub mtu: u32,
}

/// A kernel backend; all of it is pure.
pub trait Plan: Send + Sync {
    /// Which links and objects are ours.
    fn scope(&self) -> &Scope;

    /// This node's own subnets.
    fn own(&self) -> &Subnets;

    /// Whose leases count.
    fn kinds(&self) -> Kinds;

    /// Whether it matters which peers are reached over the underlay without a gateway.
    fn asks_on_link(&self) -> bool {
        false
    }

    /// What the kernel should hold, whoever the peers are.
    fn base(&self, facts: &Facts) -> KernelState;

    /// What one family of a peer adds. INVARIANT: it depends on no other peer, so that a change of one lease changes only its own objects.
    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)>;

    /// How our own packet engine forwards, for each of its devices; nothing where the kernel does it all.
    fn forwarding(&self, _leases: &LeaseTable, _facts: &Facts) -> Vec<Forwarding> {
        Vec::new()
    }

    /// What the world has to be told now.
    fn announced(&self, facts: &Facts) -> Announced;
}
