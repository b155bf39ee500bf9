//! Blackhole routes for exactly our own subnets. They drop packets to pods of this node that do not exist.
//!
//! Without them, and without a bridge, such packets would leave by the default route and come back.

use crate::names::LinkName;
use crate::object::{KernelState, Key, Value};
use crate::route::{RouteKind, RouteSpec};
use crate::scope::Scope;
use ipnet::IpNet;
use types::Subnets;

/// The metric. The connected route of the CNI bridge to the same destination has 0 (256 for IPv6) and wins. Go flannel's route has none:
/// it wins over a bridge that comes later, and is refused if the bridge was first.
pub(crate) const METRIC: u32 = 65_535;

/// Adds the routes to the desired state.
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

/// A blackhole route for a whole network, after all others: it takes what would leave this host unencrypted without them.
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

/// Whether a route of protocol `boot` is one that Go flannel adds with `--ip-blackhole-route`: to exactly our own subnet.
pub(crate) fn is_go_flannels(net: &IpNet, route: &RouteSpec, own: &Subnets) -> bool {
    route.kind == RouteKind::Blackhole && own.nets().any(|own| own.trunc() == *net)
}
