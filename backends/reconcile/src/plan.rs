//! A backend's plan: what identifies flannel's kernel objects, and which objects the node and each
//! peer need. Selects the leases that are peers: the subnet is inside the network, and the public
//! address is not this node's.

use netstate::kernel::Facts;
use netstate::kernel::Forwarding;
use netstate::object::{KernelState, Key, Value};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use std::collections::BTreeMap;
use std::net::IpAddr;
use subnet_lease::{Kinds, LeaseTable, Peer, RawJson};
use types::kernel_object::Holder;
use types::nets_overlap;

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

pub(crate) struct Eligible<'a> {
    scope: &'a Scope,
    underlay: &'a Underlay,
    shares_address: bool,
}

impl<'a> Eligible<'a> {
    pub(crate) fn new(plan: &'a dyn Plan, underlay: &'a Underlay) -> Self {
        Self { scope: plan.scope(), underlay, shares_address: plan.shares_address() }
    }

    /// The peer's subnet must be inside the network and must not overlap this node's. Its public
    /// address must not belong to this node.
    pub(crate) fn admits(&self, peer: &Peer<'_>) -> bool {
        self.scope.covers(&peer.subnet)
            && !self.scope.own.nets().any(|net| nets_overlap(&net, &peer.subnet))
            && !self.is_ours(&peer.public_ip)
    }

    /// A lease whose public address belongs to this node is not a peer, unless nodes behind NAT may
    /// share an address.
    fn is_ours(&self, ip: &IpAddr) -> bool {
        let public =
            if self.shares_address { &self.underlay.addresses } else { &self.underlay.public };
        match ip {
            IpAddr::V4(ip) => {
                [public, &self.underlay.addresses].iter().any(|known| known.v4() == Some(ip))
            }
            IpAddr::V6(ip) => {
                [public, &self.underlay.addresses].iter().any(|known| known.v6() == Some(ip))
            }
        }
    }
}

pub fn peers<'a>(
    plan: &'a dyn Plan,
    leases: &'a LeaseTable,
    underlay: &'a Underlay,
) -> impl Iterator<Item = Peer<'a>> {
    let eligible = Eligible::new(plan, underlay);
    leases.peers(&plan.scope().own, plan.kinds()).filter(move |peer| eligible.admits(peer))
}

/// The peers, and for each object the index of its peer. As in
/// [`Desired`](crate::desired::Desired), the oldest lease takes precedence.
pub fn holders(
    plan: &dyn Plan,
    leases: &LeaseTable,
    facts: &Facts,
) -> (Vec<Holder>, BTreeMap<Key, usize>) {
    let mut all: Vec<Peer<'_>> = peers(plan, leases, &facts.underlay).collect();
    all.sort_by_key(|peer| (peer.lease.since, peer.lease.subnets, peer.subnet));
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
