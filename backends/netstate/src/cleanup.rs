//! What flannel, ours or Go's, has in this network namespace: told apart from what others have, for whoever wants it gone. Pure; the
//! kernel is read by [`NetlinkKernel::inventory`] and changed by [`Kernel::apply`].
//!
//! [`NetlinkKernel::inventory`]: crate::netlink::NetlinkKernel::inventory
//! [`Kernel::apply`]: crate::kernel::Kernel::apply

use crate::link::LinkSpec;
use crate::names::LinkName;
use crate::object::{Key, Op, Value};
use crate::route::{BOOT, RouteKind, RouteSpec};
use ipnet::IpNet;
use std::collections::BTreeSet;

/// The bridge of the CNI plugin.
pub const BRIDGE: &str = "cni0";

/// What a kernel holds, whoever made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// All interfaces.
    pub links: Vec<(LinkName, LinkSpec)>,
    /// All ordinary routes of the main table: destination, metric and the rest.
    pub routes: Vec<(IpNet, u32, RouteSpec)>,
}

/// A network that was flannel's, as subnet.env or the operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The whole network.
    pub network: IpNet,
    /// This node's subnet, where it is known.
    pub own: Option<IpNet>,
    /// How long a node's subnet is.
    pub length: u8,
}

/// What tells ours from others'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The networks.
    pub networks: Vec<Network>,
    /// The mark of our routes.
    pub protocol: u8,
    /// Whether the CNI plugin's bridge goes, too.
    pub bridge: bool,
    /// What the daemons of other networks have.
    pub others: Others,
}

/// What daemons that run here have, for networks that are not to be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Their networks.
    pub networks: BTreeSet<IpNet>,
    /// Their devices.
    pub devices: BTreeSet<String>,
}

/// An object in words, why it stays, and the command that removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What it is.
    pub what: String,
    /// Why it is not removed.
    pub why: String,
    /// What to type.
    pub command: String,
}

/// What goes and what stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// In the order in which to do it, with what it is in words.
    pub remove: Vec<(Op, String)>,
    /// What may be flannel's and may not.
    pub keep: Vec<Kept>,
}

/// Whose an interface is.
enum Whose {
    Flannels,
    /// It has a name of ours and another kind.
    Doubtful,
    Others,
}

fn whose(name: &str, kind: &str) -> Whose {
    let numbered = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()));
    let kinds: &[&str] = if numbered("flannel.") || numbered("flannel-v6.") {
        // A TUN where vxlan runs in user space.
        &["vxlan", "tun"]
    } else if numbered("flannel") {
        &["tun"]
    } else if name == "flannel-wg" || name.starts_with("flannel-wg-") || numbered("flannel-wg") {
        &["wireguard"]
    } else if name == "flannel.ipip" {
        &["ipip"]
    } else {
        return Whose::Others;
    };
    if kinds.contains(&kind) { Whose::Flannels } else { Whose::Doubtful }
}

/// Decides about everything.
pub fn verdicts(inventory: &Inventory, evidence: &Evidence) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let mut links = Vec::new();
    for (name, spec) in &inventory.links {
        let kind = spec.kind.name();
        let what = format!("device {name} ({kind})");
        let command = format!("ip link delete {name}");
        let bridge = name.as_str() == BRIDGE && kind == "bridge";
        if evidence.others.devices.contains(name.as_str()) {
            continue;
        }
        match whose(name.as_str(), kind) {
            Whose::Flannels => links.push((*name, spec, what)),
            Whose::Others if bridge && evidence.bridge => links.push((*name, spec, what)),
            Whose::Others if bridge => {
                verdicts.keep.push(Kept { what, why: "pods of this node may be on it; --cni removes it".to_owned(), command });
            }
            Whose::Doubtful => verdicts.keep.push(Kept { what, why: "flannel makes no device of this kind under this name".to_owned(), command }),
            Whose::Others => {}
        }
    }
    for (net, metric, route) in &inventory.routes {
        // It goes with its device.
        if links.iter().any(|(name, ..)| *name == route.dev) || evidence.others.networks.iter().any(|other| other.contains(net)) {
            continue;
        }
        let words = words(net, *metric, route);
        let what = format!("route {words}");
        let found = evidence.networks.iter().find(|known| known.network.contains(net) && known.network.addr().is_ipv4() == net.addr().is_ipv4());
        match (route.protocol == evidence.protocol, route.protocol == BOOT, found) {
            (true, ..) => verdicts.remove.push((Op::Delete(Key::Route(*net, *metric), Value::Route(*route)), what)),
            (false, true, Some(network)) => match judge(net, route, network) {
                Judged::Gos => verdicts.remove.push((Op::Delete(Key::Route(*net, *metric), Value::Route(*route)), what)),
                Judged::Doubtful(why) => {
                    let family = if net.addr().is_ipv6() { "-6 " } else { "" };
                    verdicts.keep.push(Kept { what, why: why.to_owned(), command: format!("ip {family}route delete {words}") });
                }
                Judged::Others => {}
            },
            _ => {}
        }
    }
    verdicts.remove.extend(links.into_iter().map(|(name, spec, what)| (Op::Delete(Key::Link(name), Value::Link(Box::new(spec.clone()))), what)));
    verdicts
}

enum Judged {
    Gos,
    Doubtful(&'static str),
    Others,
}

/// Whose a route of protocol `boot` inside a flannel network is: Go flannel's leads by a gateway to exactly a node's subnet, or swallows
/// exactly our own.
fn judge(net: &IpNet, route: &RouteSpec, network: &Network) -> Judged {
    let own = network.own.is_some_and(|own| own.trunc() == *net);
    let subnet = net.prefix_len() == network.length;
    match route.kind {
        RouteKind::Blackhole if own => Judged::Gos,
        RouteKind::Blackhole if subnet => Judged::Doubtful("it is inside flannel's network, but not this node's subnet"),
        RouteKind::Unicast if subnet && !own && route.via.is_some() => Judged::Gos,
        RouteKind::Unicast if route.via.is_some() && net.prefix_len() < net.max_prefix_len() => {
            Judged::Doubtful("it is inside flannel's network, but its destination is no other node's subnet")
        }
        _ => Judged::Others,
    }
}

/// A route as `ip route` writes and reads it.
fn words(net: &IpNet, metric: u32, route: &RouteSpec) -> String {
    let mut out = match route.kind {
        RouteKind::Blackhole => format!("blackhole {net}"),
        _ => net.to_string(),
    };
    if let Some(via) = route.via {
        out.push_str(&format!(" via {via}"));
    }
    if route.dev != LinkName::default() {
        out.push_str(&format!(" dev {}", route.dev));
    }
    let protocol = if route.protocol == BOOT { "boot".to_owned() } else { route.protocol.to_string() };
    out.push_str(&format!(" proto {protocol}"));
    if metric != 0 {
        out.push_str(&format!(" metric {metric}"));
    }
    out
}

#[cfg(test)]
mod tests;
