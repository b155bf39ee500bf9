//! A backend's plan: what identifies flannel's kernel objects, and which objects the node and each
//! peer need.

use netstate::forwarding::Forwarding;
use netstate::kernel::Facts;
use netstate::object::{KernelState, Key, Value};
use netstate::scope::Scope;
use subnet_lease::{Kinds, LeaseTable, Peer, RawJson};

/// The lease attributes (the daemon adds addresses and node) and the pods' MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The wire name, empty for `udp` and `alloc`.
    pub backend: String,
    /// `BackendData` in the lease.
    pub data: Option<RawJson>,
    /// `BackendV6Data` in the lease.
    pub v6_data: Option<RawJson>,
    /// The pods' MTU in bytes (`FLANNEL_MTU` in subnet.env).
    pub mtu: u32,
}

impl Announced {
    /// The backend's leases carry no data.
    #[must_use]
    pub fn without_data(backend: &str, mtu: u32) -> Self {
        Self { backend: backend.to_owned(), data: None, v6_data: None, mtu }
    }
}

/// Pure.
pub trait Plan: Send + Sync {
    /// What identifies flannel's links and objects, and this node's subnets.
    fn scope(&self) -> &Scope;

    /// The kinds of leases that the backend uses.
    fn kinds(&self) -> Kinds;

    /// True if the plan depends on which peers the underlay reaches without a gateway.
    fn needs_on_link(&self) -> bool {
        false
    }

    /// True if nodes may share one public address, because another property distinguishes them.
    fn shares_address(&self) -> bool {
        false
    }

    /// The desired state of a node without peers.
    fn base(&self, _facts: &Facts) -> KernelState {
        KernelState::default()
    }

    /// The objects for one address family of a peer. INVARIANT: they depend on no other peer, so a
    /// changed lease changes only its own objects.
    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)>;

    /// The entries for each device of the packet engine; empty if the kernel does all forwarding.
    fn forwarding(&self, _leases: &LeaseTable, _facts: &Facts) -> Vec<Forwarding> {
        Vec::new()
    }

    /// A changed MTU or MAC changes the lease.
    fn announced(&self, facts: &Facts) -> Announced;
}
