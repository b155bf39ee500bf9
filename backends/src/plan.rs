//! What a kernel backend is: which objects are ours, what the node needs by itself, and what each peer needs.

use crate::backend::Announced;
use crate::datapath::table::Table;
use crate::desired::Desired;
use crate::kernel::{Facts, KernelState, Key, LinkName, Scope, Value};
use subnet_lease::{Kinds, LeaseTable, Peer, Subnets};

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

    /// What the kernel should hold.
    fn desired(&self, leases: &LeaseTable, facts: &Facts) -> KernelState {
        Desired::whole(self, leases, facts).state
    }

    /// How our own packet engine forwards, for each of its devices; nothing where the kernel does it all.
    fn forwarding(&self, _leases: &LeaseTable, _facts: &Facts) -> Vec<(LinkName, Table)> {
        Vec::new()
    }

    /// What the world has to be told now.
    fn announced(&self, facts: &Facts) -> Announced;
}
