//! Routes that drop packets: to non-existent pods of this node, to pods that no accepted lease has, and to pods of a network that would leave unencrypted.
//!
//! Without blackhole routes and without a bridge, packets to non-existent pods leave over the default route and return to this node.

use crate::object::{KernelState, Key, Value};
use crate::route::{RouteKind, RouteSpec, metric};
use crate::scope::Scope;
use ipnet::IpNet;
use std::collections::BTreeSet;
use types::{Subnets, nets_overlap};

/// Metric of the blackhole route for the node's own subnet. The CNI bridge's connected route to the same destination has metric 0 (256 for IPv6) and takes precedence.
///
/// Go flannel's blackhole route has no metric, so it takes precedence over the route of a bridge that appears later.
/// If the CNI bridge exists before Go flannel starts, the kernel refuses Go flannel's route.
pub(crate) const METRIC: u32 = 65_535;

/// Adds the blackhole routes for the node's own subnets to the desired state.
pub(crate) fn want(state: &mut KernelState, scope: &Scope) {
    let route = RouteSpec::dropping(RouteKind::Blackhole, scope.protocol);
    for net in scope.own.nets() {
        state.set(Key::Route(net.trunc(), METRIC), Value::Route(route));
    }
}

/// Adds routes that refuse packets to the subnets of leases that this node must not use, unless a subnet overlaps a route that is wanted, as of a
/// lease in its hold-down.
///
/// Without them, the packets would leave by the default route, unencapsulated.
pub(crate) fn bar(state: &mut KernelState, barred: &BTreeSet<Subnets>, scope: &Scope) {
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

/// Returns a blackhole route for a whole network. The blackhole route has the highest metric, so every other route to the network takes precedence.
///
/// The blackhole route drops packets to pods that would otherwise leave this host unencrypted.
pub fn of_network(network: &IpNet, protocol: u8) -> (Key, Value) {
    let route = RouteSpec::dropping(RouteKind::Blackhole, protocol);
    (Key::Route(network.trunc(), u32::MAX), Value::Route(route))
}

/// Returns whether a route of protocol `boot` is a blackhole route of Go flannel (`--ip-blackhole-route`) inside a subnet with a desired blackhole
/// route. This node's subnet may have had another length before, and the longer route would swallow packets to pods.
pub(crate) fn is_replaced(net: &IpNet, route: &RouteSpec, want: &KernelState) -> bool {
    route.kind == RouteKind::Blackhole
        && net.prefix_len() < net.max_prefix_len()
        && want.0.keys().any(|key| matches!(key, Key::Route(own, METRIC) if own.contains(net)))
}
