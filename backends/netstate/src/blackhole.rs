//! The end of the road for packets to pods of this node that are not there: a blackhole route for exactly our own subnets.
//!
//! Without it, and without a bridge, such packets leave by the default route, and come back.

use crate::names::LinkName;
use crate::object::{KernelState, Key, Value};
use crate::route::{RouteKind, RouteSpec};
use crate::scope::Scope;
use ipnet::IpNet;
use subnet_lease::Subnets;

/// Its metric: the connected route of the CNI bridge to the same destination has 0, or 256 for IPv6, and wins. Go flannel's has none,
/// and so wins over a bridge that comes later, or is refused where the bridge was first.
pub const METRIC: u32 = 65_535;

/// Adds the routes to what is wanted.
pub(crate) fn want(state: &mut KernelState, own: &Subnets, scope: &Scope) {
    let dev = LinkName::default();
    let route = RouteSpec { via: None, dev, onlink: false, kind: RouteKind::Blackhole, scope: 0, protocol: scope.protocol };
    for net in own.nets() {
        state.set(Key::Route(net.trunc(), METRIC), Value::Route(route));
    }
}

/// Whether a route of protocol `boot` is what Go flannel makes with `--ip-blackhole-route`: to exactly our own subnet.
pub(crate) fn is_left_over(net: &IpNet, route: &RouteSpec, own: &Subnets) -> bool {
    route.kind == RouteKind::Blackhole && own.nets().any(|own| own.trunc() == *net)
}
