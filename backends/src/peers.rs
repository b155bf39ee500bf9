//! Which leases become kernel state: other nodes', inside the network, reached at an address that is not our own.

use crate::backend::Underlay;
use crate::kernel::Scope;
use subnet_lease::{Kinds, LeaseTable, Peer, Subnets, nets_overlap};

/// The peers of one backend that can be programmed.
pub fn peers<'a>(leases: &'a LeaseTable, own: &Subnets, kinds: Kinds, scope: &Scope, underlay: &Underlay) -> impl Iterator<Item = Peer<'a>> {
    let own_nets: Vec<_> = own.nets().collect();
    leases.peers(own, kinds).filter(move |peer| {
        scope.covers(&peer.subnet) && !own_nets.iter().any(|net| nets_overlap(net, &peer.subnet)) && !is_ours(underlay, &peer.public_ip)
    })
}

/// Whether an address is this node's: what has it for public address is no peer (the trap of equal NAT addresses).
fn is_ours(underlay: &Underlay, ip: &std::net::IpAddr) -> bool {
    match ip {
        std::net::IpAddr::V4(ip) => [&underlay.public, &underlay.addresses].iter().any(|known| known.v4() == Some(ip)),
        std::net::IpAddr::V6(ip) => [&underlay.public, &underlay.addresses].iter().any(|known| known.v6() == Some(ip)),
    }
}
