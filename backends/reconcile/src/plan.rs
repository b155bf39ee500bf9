//! A backend's plan: what identifies flannel's kernel objects, and which objects the node and each
//! peer need. Selects the leases that are peers: the subnet is inside the network, and the public
//! address is not this node's.

use netstate::{Facts, Forwarding, KernelState, Key, Scope, Underlay, Value};
use std::collections::BTreeMap;
use std::future::pending;
use std::pin::Pin;
use subnet_lease::{Kinds, LeaseTable, Peer, RawJson};
use types::kernel_object::Holder;
use types::{Addresses, Subnets};

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

    /// Ends when the plan has changed, for example because of a new key.
    ///
    /// # Cancel safety
    /// The plan changes only if the future ends.
    fn replanned(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(pending())
    }

    /// A changed MTU or MAC changes the lease.
    fn announced(&self, facts: &Facts) -> Announced;
}

/// The peer's subnet must be inside the network and must not overlap this node's. Its public address
/// must not belong to this node, unless nodes behind NAT may share an address.
pub(crate) fn admits_peer(plan: &dyn Plan, underlay: &Underlay, peer: &Peer<'_>) -> bool {
    let scope = plan.scope();
    let is_ours = |own: &Addresses| own.ips().any(|ip| ip == peer.public_ip);
    scope.covers(&peer.subnet)
        && !scope.own.overlaps(&Subnets::from(peer.subnet))
        && !is_ours(&underlay.addresses)
        && (plan.shares_address() || !is_ours(&underlay.public))
}

pub fn peers<'a>(
    plan: &'a dyn Plan,
    leases: &'a LeaseTable,
    underlay: &'a Underlay,
) -> impl Iterator<Item = Peer<'a>> {
    leases
        .peers(&plan.scope().own, plan.kinds())
        .filter(move |peer| admits_peer(plan, underlay, peer))
}

/// Those of the oldest lease first. The peers of a lease are adjacent.
pub(crate) fn peers_by_age<'a>(
    plan: &'a dyn Plan,
    leases: &'a LeaseTable,
    facts: &'a Facts,
) -> Vec<Peer<'a>> {
    let mut all: Vec<Peer<'_>> = peers(plan, leases, &facts.underlay).collect();
    all.sort_by_key(|peer| (peer.lease.since, peer.lease.subnets, peer.subnet));
    all
}

/// The peers, and for each object the index of its peer. As in
/// [`Desired`](crate::desired::Desired), the oldest lease takes precedence.
pub fn holders(
    plan: &dyn Plan,
    leases: &LeaseTable,
    facts: &Facts,
) -> (Vec<Holder>, BTreeMap<Key, usize>) {
    let all = peers_by_age(plan, leases, facts);
    let (mut holders, mut owners) = (Vec::with_capacity(all.len()), BTreeMap::new());
    for (place, peer) in all.iter().enumerate() {
        let node = peer
            .lease
            .attrs
            .node
            .as_ref()
            .map(|node| node.name.to_string())
            .filter(|name| !name.is_empty());
        holders.push(Holder { node, subnet: peer.subnet, address: peer.public_ip });
        for (key, _) in plan.of_peer(peer, facts) {
            owners.entry(key).or_insert(place);
        }
    }
    (holders, owners)
}
