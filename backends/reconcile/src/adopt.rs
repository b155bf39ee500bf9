//! Adopts routes that Go flannel left, and removes routes that would bypass an encrypting device.

use ipnet::IpNet;
use netstate::blackhole;
use netstate::encrypted::Encrypted;
use netstate::object::route::is_go_flannels;
use netstate::{Facts, KernelState, Key, RouteSpec, Value};
use std::collections::BTreeMap;
use subnet_lease::{Kinds, LeaseTable};
use types::Subnets;

/// Adopts desired routes that Go flannel left. Such a route leads exactly to a leased subnet, over
/// either a flannel device, or the underlay with the peer's address as gateway. The kernel replaces
/// it in place, so that no packets get lost.
///
/// flannel-rs' blackhole route replaces Go flannel's inside this node's own subnet. If the plan has
/// no blackhole route, existing ones stay, because an operator may have added them.
///
/// If one desired route leads to all peers, routes to single peers go, because they would divert
/// the packets to the peer.
///
/// If `settled` is false, so do underlay routes that bypass an encrypting device, to a subnet with
/// the prefix length of node subnets. Otherwise, the next node with the same subnet would get
/// packets unencrypted.
pub(super) fn adopt_leftovers(
    have: &mut KernelState,
    want: &KernelState,
    leftovers: &[(Key, RouteSpec)],
    leases: &LeaseTable,
    own: &Subnets,
    facts: &Facts,
    settled: bool,
) {
    if leftovers.is_empty() {
        return;
    }
    let encrypted = Encrypted::by(want);
    let is_on_underlay = |route: &RouteSpec| route.dev.as_str() == facts.underlay.name;
    let leads_to_a_node = |net: &IpNet, route: &RouteSpec| {
        let mut of_family = own.nets().filter(|own| own.addr().is_ipv4() == net.addr().is_ipv4());
        of_family.any(|own| is_go_flannels(net, route, Some(own), own.prefix_len()))
            && is_on_underlay(route)
    };
    let peers: BTreeMap<_, _> =
        leases.peers(own, Kinds::Any).map(|peer| (peer.subnet, peer.public_ip)).collect();
    for (key, route) in leftovers {
        let Key::Route(net, _) = key else { continue };
        // An object that appears while this daemon runs is not a leftover: an operator may want it.
        let bypasses =
            !settled && leads_to_a_node(net, route) && encrypted.is_bypassed_by(net, route);
        let leads_to_peer = peers.get(net).is_some_and(|public| {
            route.dev.as_str().starts_with("flannel")
                || (route.via == Some(*public) && is_on_underlay(route))
        });
        let is_diverting = || {
            want.0.keys().any(
                |wanted| matches!(wanted, Key::Route(wider, _) if wider != net && wider.contains(net)),
            )
        };
        if blackhole::is_replaced(net, route, want)
            || bypasses
            || (leads_to_peer && (want.0.contains_key(key) || is_diverting()))
        {
            have.0.entry(*key).or_insert(Value::Route(*route));
        }
    }
}
