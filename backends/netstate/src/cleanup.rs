//! Finds the objects of flannel-rs and Go flannel in this network namespace for cleanup, and tells
//! them from the objects of other programs.
//!
//! Pure: [`NetlinkKernel::inventory`] reads the kernel state and [`Kernel::apply`] changes it.
//!
//! [`NetlinkKernel::inventory`]: crate::netlink::NetlinkKernel::inventory
//! [`Kernel::apply`]: crate::kernel::Kernel::apply

use crate::host::port;
use crate::names::LinkName;
use crate::object::link::{LinkSpec, SeenLink};
use crate::object::route::{BOOT, RouteKind, RouteSpec, is_go_flannels};
use crate::object::{Key, Op, Value};
use crate::report::protocols::Protocols;
use crate::report::text::Words;
use ipnet::IpNet;
use std::collections::BTreeSet;
use types::Profile;

/// The bridge of the CNI plugin.
pub const BRIDGE: &str = "cni0";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    pub links: Vec<SeenLink>,
    /// The main table except routes with a type of service (TOS): destination, metric and the rest.
    pub routes: Vec<(IpNet, u32, RouteSpec)>,
}

/// Known from subnet.env or from the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlannelNetwork {
    /// The network of the whole cluster.
    pub network: IpNet,
    /// This node's subnet, if known.
    pub own: Option<IpNet>,
    /// The prefix length of the nodes' subnets.
    pub length: u8,
}

/// The evidence by which cleanup recognises flannel's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Cleanup removes their devices.
    pub backends: Vec<&'static Profile>,
    /// Cleanup may remove their routes.
    pub networks: Vec<FlannelNetwork>,
    /// The number of flanneld's routes.
    pub protocol: u8,
    /// Whether cleanup also removes the CNI plugin's bridge.
    pub bridge: bool,
    pub others: OtherDaemons,
}

/// Objects of running daemons that serve other networks. Cleanup must not remove them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherDaemons {
    pub networks: BTreeSet<IpNet>,
    pub devices: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptObject {
    /// Kind and name of the object, for messages.
    pub what: String,
    pub why: &'static str,
    /// The shell command that removes the object manually.
    pub command: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// In order, each with a description of the object.
    pub remove: Vec<(Op, String)>,
    /// Another program might own them.
    pub keep: Vec<KeptObject>,
}

enum Fate {
    Remove,
    /// The reason: another program might own the object.
    Keep(&'static str),
    /// Not flannel's: not in the report.
    Ignore,
}

#[must_use]
pub fn is_flannels(backends: &[&Profile], name: &str, kind: &str) -> bool {
    matches!(device_fate(backends, name, kind), Fate::Remove)
}

fn device_fate(backends: &[&Profile], name: &str, kind: &str) -> Fate {
    let devices = backends.iter().flat_map(|backend| backend.devices);
    let kinds = devices.filter(|device| device.is_named(name)).map(|device| device.kinds);
    let port = port::is_port(name).then_some(&["veth"][..]);
    match kinds.chain(port).map(|kinds| kinds.contains(&kind)).max() {
        Some(true) => Fate::Remove,
        Some(false) => Fate::Keep("flannel does not create devices of this kind under this name"),
        None => Fate::Ignore,
    }
}

#[must_use]
pub fn decide_removals(inventory: &Inventory, evidence: &Evidence) -> Decisions {
    let mut decisions = Decisions::default();
    let mut links = Vec::new();
    for SeenLink { name, spec, .. } in &inventory.links {
        let what = format!("device {name} ({})", spec.kind.name());
        match link_fate(*name, spec, evidence) {
            Fate::Remove => links.push((*name, spec, what)),
            Fate::Keep(why) => decisions.keep.push(KeptObject {
                what,
                why,
                command: format!("ip link delete {name}"),
            }),
            Fate::Ignore => {}
        }
    }
    for (net, metric, route) in &inventory.routes {
        // The route is removed with its device.
        if links.iter().any(|(name, ..)| *name == route.dev) {
            continue;
        }
        let words = describe_route(net, *metric, route);
        let what = format!("route {words}");
        match route_fate(net, route, evidence) {
            Fate::Remove => decisions
                .remove
                .push((Op::Delete(Key::Route(*net, *metric), Value::Route(*route)), what)),
            Fate::Keep(why) => {
                let family = if net.addr().is_ipv6() { "-6 " } else { "" };
                decisions.keep.push(KeptObject {
                    what,
                    why,
                    command: format!("ip {family}route delete {words}"),
                });
            }
            Fate::Ignore => {}
        }
    }
    decisions.remove.extend(links.into_iter().map(|(name, spec, what)| {
        (Op::Delete(Key::Link(name), Value::Link(Box::new(spec.clone()))), what)
    }));
    decisions
}

fn link_fate(name: LinkName, spec: &LinkSpec, evidence: &Evidence) -> Fate {
    if evidence.others.devices.contains(name.as_str()) {
        return Fate::Ignore;
    }
    let kind = spec.kind.name();
    let bridge = name.as_str() == BRIDGE && kind == "bridge";
    match device_fate(&evidence.backends, name.as_str(), kind) {
        Fate::Ignore if bridge && evidence.bridge => Fate::Remove,
        Fate::Ignore if bridge => {
            Fate::Keep("pods of this node may use this bridge; --cni removes the bridge")
        }
        fate => fate,
    }
}

fn route_fate(net: &IpNet, route: &RouteSpec, evidence: &Evidence) -> Fate {
    if evidence.others.networks.iter().any(|other| other.contains(net)) {
        return Fate::Ignore;
    }
    if route.protocol == evidence.protocol {
        return Fate::Remove;
    }
    let network = evidence.networks.iter().find(|known| {
        known.network.contains(net) && known.network.addr().is_ipv4() == net.addr().is_ipv4()
    });
    match network {
        Some(network) if route.protocol == BOOT => boot_route_fate(net, route, network),
        None if route.kind == RouteKind::Blackhole
            && route.protocol == BOOT
            && evidence.networks.is_empty() =>
        {
            Fate::Keep(
                "no network of flannel is known; with --network, cleanup removes it if it is inside",
            )
        }
        _ => Fate::Ignore,
    }
}

/// Decides about a route of protocol `boot` inside a flannel network. Go flannel's routes lead
/// through a gateway to exactly one node's subnet, or are blackhole routes for this node's own
/// subnet. That may have had another length before.
fn boot_route_fate(net: &IpNet, route: &RouteSpec, network: &FlannelNetwork) -> Fate {
    let subnet = network.network != *net && net.prefix_len() < net.max_prefix_len();
    match route.kind {
        RouteKind::Blackhole if subnet => Fate::Remove,
        RouteKind::Blackhole => Fate::Keep(
            "the route is inside flannel's network, but its destination is no node's subnet",
        ),
        RouteKind::Unicast if is_go_flannels(net, route, network.own, network.length) => {
            Fate::Remove
        }
        RouteKind::Unicast if route.via.is_some() && net.prefix_len() < net.max_prefix_len() => {
            Fate::Keep(
                "the route is inside flannel's network, but its destination is not another node's subnet",
            )
        }
        _ => Fate::Ignore,
    }
}

/// Formats a route like `ip route`. Protocols other than `boot` are numbers, because their names
/// differ between hosts.
fn describe_route(net: &IpNet, metric: u32, route: &RouteSpec) -> String {
    let protocols = Protocols::of(&[(BOOT, "boot")]);
    route.text(net, metric, &Words { protocols, ..Words::default() })
}

#[cfg(test)]
mod tests;
