//! Routes that drop packets: to non-existent pods of this node, to pods that no accepted lease has, and to pods of a network that would leave unencrypted.
//!
//! Without blackhole routes and without a bridge, packets to non-existent pods leave over the default route and return to this node.

use crate::object::route::{RouteKind, RouteSpec, metric};
use crate::object::{KernelState, Key, Value};
use crate::scope::Scope;
use ipnet::IpNet;
use std::collections::BTreeSet;
use types::{Subnets, nets_overlap};

/// The metric for the node's own subnet. The CNI bridge's connected route to it has metric 0 (256
/// for IPv6) and takes precedence.
///
/// Go flannel's blackhole route has no metric, so it takes precedence over the route of a bridge
/// that appears later. If the CNI bridge exists before Go flannel starts, the kernel refuses Go
/// flannel's route.
pub const METRIC: u32 = 65_535;

/// Adds the blackhole routes for the node's own subnets.
pub fn add_blackhole(state: &mut KernelState, scope: &Scope) {
    let route = RouteSpec::dropping(RouteKind::Blackhole, scope.protocol);
    for net in scope.own.nets() {
        state.set(Key::Route(net.trunc(), METRIC), Value::Route(route));
    }
}

/// Refuses packets to the subnets of leases that this node must not use. Without these routes, the
/// packets would leave by the default route, unencapsulated. A subnet that overlaps a wanted route,
/// as of a lease in its hold-down, gets none.
pub fn bar_networks(state: &mut KernelState, barred: &BTreeSet<Subnets>, scope: &Scope) {
    let routed: Vec<IpNet> = state
        .0
        .keys()
        .filter_map(|key| match key {
            // The backend routes the whole network into its device or nowhere.
            Key::Route(net, _) if !scope.networks.nets().any(|network| network.trunc() == *net) => {
                Some(*net)
            }
            _ => None,
        })
        .chain(scope.own.nets())
        .collect();
    for net in barred.iter().flat_map(Subnets::nets) {
        if scope.covers(&net) && !routed.iter().any(|routed| nets_overlap(routed, &net)) {
            let route = RouteSpec::dropping(RouteKind::Unreachable, scope.protocol);
            state.set(Key::Route(net.trunc(), metric(&net)), Value::Route(route));
        }
    }
}

/// Drops packets to pods that would otherwise leave this host unencrypted. The route has the
/// highest metric, so every other route to the network takes precedence.
#[must_use]
pub fn of_network(network: &IpNet, protocol: u8) -> (Key, Value) {
    let route = RouteSpec::dropping(RouteKind::Blackhole, protocol);
    (Key::Route(network.trunc(), u32::MAX), Value::Route(route))
}

/// True for a route of protocol `boot` that is a blackhole route of Go flannel
/// (`--ip-blackhole-route`) inside a subnet with a desired blackhole route. This node's subnet may
/// have had another length before, and the longer route would swallow packets to pods.
#[must_use]
pub fn is_replaced(net: &IpNet, route: &RouteSpec, want: &KernelState) -> bool {
    route.kind == RouteKind::Blackhole
        && net.prefix_len() < net.max_prefix_len()
        && want.0.keys().any(|key| matches!(key, Key::Route(own, METRIC) if own.contains(net)))
}
