//! Selects the leases of other nodes that become kernel objects: the subnet is inside the network, and the public address is not this node's.

use crate::plan::Plan;
use netstate::kernel::Facts;
use netstate::object::Key;
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use std::collections::BTreeMap;
use std::net::IpAddr;
use subnet_lease::{LeaseTable, Peer};
use types::kernel_object::Holder;
use types::nets_overlap;

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
