//! Blackhole routes for exactly this node's own subnets. A blackhole route drops packets to non-existent pods of this node.
//!
//! Without blackhole routes and without a bridge, packets to non-existent pods leave over the default route and return to this node.

use crate::names::LinkName;
use crate::object::{KernelState, Key, Value};
use crate::route::{RouteKind, RouteSpec};
use crate::scope::Scope;
use ipnet::IpNet;
use types::Subnets;

/// Metric of the blackhole route for the node's own subnet. The CNI bridge's connected route to the same destination has metric 0 (256 for IPv6) and takes precedence.
///
/// Go flannel's blackhole route has no metric, so it takes precedence over the route of a bridge that appears later.
/// If the CNI bridge exists before Go flannel starts, the kernel refuses Go flannel's route.
pub(crate) const METRIC: u32 = 65_535;

/// Adds the blackhole routes for the node's own subnets to the desired state.
pub(crate) fn want(state: &mut KernelState, scope: &Scope) {
    let dev = LinkName::default();
    let route = RouteSpec {
        via: None,
        dev,
        onlink: false,
        kind: RouteKind::Blackhole,
        scope: 0,
        protocol: scope.protocol,
    };
    for net in scope.own.nets() {
        state.set(Key::Route(net.trunc(), METRIC), Value::Route(route));
    }
}

/// Returns a blackhole route for a whole network. The blackhole route has the highest metric, so every other route to the network takes precedence.
///
/// The blackhole route drops packets to pods that would otherwise leave this host unencrypted.
pub fn of_network(network: &IpNet, protocol: u8) -> (Key, Value) {
    let route = RouteSpec {
        via: None,
        dev: LinkName::default(),
        onlink: false,
        kind: RouteKind::Blackhole,
        scope: 0,
        protocol,
    };
    (Key::Route(network.trunc(), u32::MAX), Value::Route(route))
}

/// Returns whether a route of protocol `boot` is a blackhole route to exactly our own subnet, as Go flannel adds with `--ip-blackhole-route`.
pub(crate) fn is_go_flannels(net: &IpNet, route: &RouteSpec, own: &Subnets) -> bool {
    route.kind == RouteKind::Blackhole && own.nets().any(|own| own.trunc() == *net)
}
