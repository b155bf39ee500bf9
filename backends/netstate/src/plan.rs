//! A backend's plan, which determines flannel's kernel objects, the objects that the node needs, and the objects that each peer needs.

use crate::forwarding::Forwarding;
use crate::kernel::Facts;
use crate::object::{KernelState, Key, Value};
use crate::scope::Scope;
use subnet_lease::{Kinds, LeaseTable, Peer, RawJson};

/// The node's announcement: the lease attributes (the daemon adds addresses and node) and the pods' MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The backend's wire name, empty for `udp` and `alloc`.
    pub backend: String,
    /// The value of `BackendData` in the lease.
    pub data: Option<RawJson>,
    /// The value of `BackendV6Data` in the lease.
    pub v6_data: Option<RawJson>,
    /// The MTU of pods in bytes (`FLANNEL_MTU` in subnet.env).
    pub mtu: u32,
}

impl Announced {
    /// Creates the announcement of a backend whose leases carry no data.
    pub fn without_data(backend: &str, mtu: u32) -> Self {
        Self { backend: backend.to_owned(), data: None, v6_data: None, mtu }
    }
}

/// The plan of a kernel backend. Pure.
pub trait Plan: Send + Sync {
    /// Returns the criteria by which flanneld recognises flannel's links and objects, and this node's subnets.
    fn scope(&self) -> &Scope;

    /// Returns the kinds of leases that the backend uses.
    fn kinds(&self) -> Kinds;

    /// Returns whether the plan needs to know which peers the underlay reaches without a gateway.
    fn needs_on_link(&self) -> bool {
        false
    }

    /// Returns whether nodes may share one public address, because another property distinguishes the nodes.
    fn shares_address(&self) -> bool {
        false
    }

    /// Returns the desired kernel state of a node without peers.
    fn base(&self, facts: &Facts) -> KernelState;

    /// Returns the kernel objects for one address family of a peer. INVARIANT: a peer's objects depend on no other peer, so a changed lease changes only its
    /// own objects.
    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)>;

    /// Returns the forwarding entries of each device of the packet engine. The list is empty if the kernel does all forwarding.
    fn forwarding(&self, _leases: &LeaseTable, _facts: &Facts) -> Vec<Forwarding> {
        Vec::new()
    }

    /// Returns the announcement that follows from `facts`. A changed MTU or MAC changes the lease.
    fn announced(&self, facts: &Facts) -> Announced;
}
