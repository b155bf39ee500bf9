//! Finds routes that bypass an encrypting device. Pure.

use crate::names::LinkName;
use crate::object::route::{RouteKind, RouteSpec};
use crate::object::{KernelState, Key, Value};
use ipnet::IpNet;

/// The networks that a desired state routes into encrypting devices; empty without such a device.
pub struct Encrypted {
    devices: Vec<LinkName>,
    nets: Vec<IpNet>,
}

impl Encrypted {
    #[must_use]
    pub fn by(want: &KernelState) -> Self {
        let encrypting = want.links().filter(|(_, spec)| spec.kind.encrypts());
        let devices: Vec<LinkName> = encrypting.map(|(name, _)| name).collect();
        if devices.is_empty() {
            return Self { devices, nets: Vec::new() };
        }
        let into =
            |route: &RouteSpec| route.kind == RouteKind::Unicast && devices.contains(&route.dev);
        let nets = want.0.iter().filter_map(|(key, value)| match (key, value) {
            (Key::Route(net, _), Value::Route(route)) if into(route) => Some(*net),
            _ => None,
        });
        Self { nets: nets.collect(), devices }
    }

    /// True if the route diverts packets from an encrypting device to another device.
    #[must_use]
    pub fn is_bypassed_by(&self, net: &IpNet, route: &RouteSpec) -> bool {
        route.kind == RouteKind::Unicast
            && !self.devices.contains(&route.dev)
            && self.nets.iter().any(|wider| wider.contains(net))
    }
}
