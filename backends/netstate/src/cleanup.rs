//! Finds what flannel-rs and Go flannel have in this network namespace, so that it can be removed, and tells it from what others have. Pure:
//! the kernel is read by [`NetlinkKernel::inventory`] and changed by [`Kernel::apply`].
//!
//! [`NetlinkKernel::inventory`]: crate::netlink::NetlinkKernel::inventory
//! [`Kernel::apply`]: crate::kernel::Kernel::apply

use crate::link::LinkSpec;
use crate::names::LinkName;
use crate::object::{Key, Op, Value};
use crate::route::{BOOT, RouteKind, RouteSpec, is_go_flannels};
use crate::text::Words;
use ipnet::IpNet;
use std::collections::BTreeSet;

/// The bridge of the CNI plugin.
pub const BRIDGE: &str = "cni0";

/// The contents of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// All interfaces.
    pub links: Vec<(LinkName, LinkSpec)>,
    /// All ordinary routes of the main table: destination, metric and content.
    pub routes: Vec<(IpNet, u32, RouteSpec)>,
}

/// A network of flannel, known from subnet.env or from the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlannelNetwork {
    /// The whole network.
    pub network: IpNet,
    /// This node's subnet, if known.
    pub own: Option<IpNet>,
    /// The prefix length of node subnets.
    pub length: u8,
}

/// The evidence by which flannel's objects are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The networks.
    pub networks: Vec<FlannelNetwork>,
    /// The protocol number of our routes.
    pub protocol: u8,
    /// Whether to remove the CNI plugin's bridge too.
    pub bridge: bool,
    /// The objects of other networks' daemons.
    pub others: OtherDaemons,
}

/// What running daemons use for networks that must not be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherDaemons {
    /// Their networks.
    pub networks: BTreeSet<IpNet>,
    /// Their devices.
    pub devices: BTreeSet<String>,
}

/// An object that stays: a description, the reason, and the command that removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptObject {
    /// The description.
    pub what: String,
    /// Why it is not removed.
    pub why: String,
    /// The command.
    pub command: String,
}

/// What to remove and what to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The operations in order, each with a description.
    pub remove: Vec<(Op, String)>,
    /// Objects that may or may not be flannel's.
    pub keep: Vec<KeptObject>,
}

/// The owner of an interface.
enum LinkOwner {
    Flannel,
    /// It has one of our names but another kind.
    Unclear,
    Others,
}

fn link_owner(name: &str, kind: &str) -> LinkOwner {
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let kinds: &[&str] = if numbered("flannel.") || numbered("flannel-v6.") {
        // A TUN device if vxlan runs in user space.
        &["vxlan", "tun"]
    } else if numbered("flannel") {
        &["tun"]
    } else if name == "flannel-wg" || name.starts_with("flannel-wg-") || numbered("flannel-wg") {
        // A TUN device if flanneld encrypts.
        &["wireguard", "tun"]
    } else if name == "flannel.ipip" {
        &["ipip"]
    } else {
        return LinkOwner::Others;
    };
    if kinds.contains(&kind) {
        LinkOwner::Flannel
    } else {
        LinkOwner::Unclear
    }
}

/// Whether flannel, ours or Go's, creates devices of this name and kind.
pub fn is_flannels(name: &str, kind: &str) -> bool {
    matches!(link_owner(name, kind), LinkOwner::Flannel)
}

/// Decides for each object whether to remove or keep it.
pub fn decide(inventory: &Inventory, evidence: &Evidence) -> Decisions {
    let mut decisions = Decisions::default();
    let mut links = Vec::new();
    for (name, spec) in &inventory.links {
        let kind = spec.kind.name();
        let what = format!("device {name} ({kind})");
        let command = format!("ip link delete {name}");
        let bridge = name.as_str() == BRIDGE && kind == "bridge";
        if evidence.others.devices.contains(name.as_str()) {
            continue;
        }
        match link_owner(name.as_str(), kind) {
            LinkOwner::Flannel => links.push((*name, spec, what)),
            LinkOwner::Others if bridge && evidence.bridge => links.push((*name, spec, what)),
            LinkOwner::Others if bridge => {
                decisions.keep.push(KeptObject {
                    what,
                    why: "pods of this node may use it; --cni removes it".to_owned(),
                    command,
                });
            }
            LinkOwner::Unclear => {
                decisions.keep.push(KeptObject {
                    what,
                    why: "flannel does not create devices of this kind under this name".to_owned(),
                    command,
                });
            }
            LinkOwner::Others => {}
        }
    }
    for (net, metric, route) in &inventory.routes {
        // The route is removed with its device.
        if links.iter().any(|(name, ..)| *name == route.dev)
            || evidence
                .others
                .networks
                .iter()
                .any(|other| other.contains(net))
        {
            continue;
        }
        let words = words(net, *metric, route);
        let what = format!("route {words}");
        let found = evidence.networks.iter().find(|known| {
            known.network.contains(net) && known.network.addr().is_ipv4() == net.addr().is_ipv4()
        });
        match (
            route.protocol == evidence.protocol,
            route.protocol == BOOT,
            found,
        ) {
            (true, ..) => decisions.remove.push((
                Op::Delete(Key::Route(*net, *metric), Value::Route(*route)),
                what,
            )),
            (false, true, Some(network)) => match route_owner(net, route, network) {
                RouteOwner::GoFlannel => decisions.remove.push((
                    Op::Delete(Key::Route(*net, *metric), Value::Route(*route)),
                    what,
                )),
                RouteOwner::Unclear(why) => {
                    let family = if net.addr().is_ipv6() { "-6 " } else { "" };
                    decisions.keep.push(KeptObject {
                        what,
                        why: why.to_owned(),
                        command: format!("ip {family}route delete {words}"),
                    });
                }
                RouteOwner::Others => {}
            },
            _ => {}
        }
    }
    decisions
        .remove
        .extend(links.into_iter().map(|(name, spec, what)| {
            (
                Op::Delete(Key::Link(name), Value::Link(Box::new(spec.clone()))),
                what,
            )
        }));
    decisions
}

enum RouteOwner {
    GoFlannel,
    Unclear(&'static str),
    Others,
}

/// The owner of a route of protocol `boot` inside a flannel network. Go flannel's routes lead by a gateway to exactly a node's subnet, or
/// blackhole exactly our own.
fn route_owner(net: &IpNet, route: &RouteSpec, network: &FlannelNetwork) -> RouteOwner {
    let own = network.own.is_some_and(|own| own.trunc() == *net);
    let subnet = net.prefix_len() == network.length;
    match route.kind {
        RouteKind::Blackhole if own => RouteOwner::GoFlannel,
        RouteKind::Blackhole if subnet => {
            RouteOwner::Unclear("it is inside flannel's network, but not this node's subnet")
        }
        RouteKind::Unicast if is_go_flannels(net, route, network.own, network.length) => {
            RouteOwner::GoFlannel
        }
        RouteKind::Unicast if route.via.is_some() && net.prefix_len() < net.max_prefix_len() => {
            RouteOwner::Unclear(
                "it is inside flannel's network, but its destination is not another node's subnet",
            )
        }
        _ => RouteOwner::Others,
    }
}

/// A route in the syntax of `ip route`. Marks are numbers: a name is one host's.
fn words(net: &IpNet, metric: u32, route: &RouteSpec) -> String {
    let protocol = |number: u8| {
        if number == BOOT {
            "boot".to_owned()
        } else {
            number.to_string()
        }
    };
    Words {
        protocol: &protocol,
        interface: &|_| None,
    }
    .route(net, metric, route)
}

#[cfg(test)]
mod tests;
