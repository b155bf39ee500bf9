//! Which leases become kernel state: those of other nodes, inside the network, at an address that is not our own.

use crate::scope::Scope;
use crate::underlay::Underlay;
use ipnet::IpNet;
use std::net::IpAddr;
use subnet_lease::{Kinds, LeaseTable, Peer, Subnets, nets_overlap};

/// Decides whether a peer can be programmed.
pub struct Eligible<'a> {
    own: Vec<IpNet>,
    scope: &'a Scope,
    underlay: &'a Underlay,
}

impl<'a> Eligible<'a> {
    /// For a node with these subnets.
    pub fn new(own: &Subnets, scope: &'a Scope, underlay: &'a Underlay) -> Self {
        Self { own: own.nets().collect(), scope, underlay }
    }

    /// Whether a peer can be programmed.
    pub fn admits(&self, peer: &Peer<'_>) -> bool {
        self.scope.covers(&peer.subnet) && !self.own.iter().any(|net| nets_overlap(net, &peer.subnet)) && !is_ours(self.underlay, &peer.public_ip)
    }
}

/// The peers of one backend that can be programmed.
pub fn peers<'a>(leases: &'a LeaseTable, own: &Subnets, kinds: Kinds, scope: &'a Scope, underlay: &'a Underlay) -> impl Iterator<Item = Peer<'a>> {
    let eligible = Eligible::new(own, scope, underlay);
    leases.peers(own, kinds).filter(move |peer| eligible.admits(peer))
}

/// Whether an address is this node's own. A lease with such a public address is not a peer (nodes behind NAT may share an address).
fn is_ours(underlay: &Underlay, ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => [&underlay.public, &underlay.addresses].iter().any(|known| known.v4() == Some(ip)),
        IpAddr::V6(ip) => [&underlay.public, &underlay.addresses].iter().any(|known| known.v6() == Some(ip)),
    }
}
