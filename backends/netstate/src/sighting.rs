//! A snapshot of a node's desired and actual kernel state, with the peer to which each object belongs. [`inspect`](crate::inspect) evaluates it.

use crate::kernel::{Facts, OpError};
use crate::object::{KernelState, Key};
use crate::peers::peers;
use crate::plan::Plan;
use crate::survey::Survey;
use std::collections::BTreeMap;
use subnet_lease::{LeaseTable, Peer};
use types::Subnets;
use types::kernel_object::Holder;

#[derive(Clone, Debug)]
pub struct Sighting {
    pub want: KernelState,
    /// The desired objects that exist, and flannel's objects that are not desired.
    pub have: KernelState,
    /// The errors of the last pass.
    pub errors: Vec<OpError>,
    /// flanneld delays the deletion of undesired objects, because many routes and peers in the
    /// kernel have no lease.
    pub held: bool,
    pub survey: Survey,
    /// This node's.
    pub own: Subnets,
    /// The peers whose leases require objects in the kernel.
    pub holders: Vec<Holder>,
    /// As an index into `holders`. Objects without an entry belong to this node.
    pub owners: BTreeMap<Key, usize>,
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
