//! The kernel objects that flanneld manages, in order of dependency. The submodules define the
//! contents of their kinds, and [`kinds`](crate::kinds) what is done with them.

pub mod link;
pub mod route;
pub mod wireguard_peer;

use crate::names::{LinkName, Mac};
use ipnet::IpNet;
use link::LinkSpec;
use netlink::uapi::{DELETION, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use route::RouteSpec;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use wireguard_peer::{PublicKey, WireguardPeer};

/// The identity of a kernel object. INVARIANT: the order of keys is the order of dependency.
/// flanneld adds objects in this order and deletes them in reverse.
///
/// FDB entries come before neighbours: a neighbour with a MAC that has no FDB entry yet would
/// interrupt traffic to a live peer. A WireGuard peer comes before its allowed IPs: the kernel
/// moves each allowed IP atomically from its previous peer, which flanneld deletes only then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    Link(LinkName),
    Address(LinkName, IpNet),
    /// The underlay address of the VTEP with a MAC.
    Fdb(LinkName, Mac),
    /// The MAC of an address that is reachable through an interface.
    Neighbor(LinkName, IpAddr),
    WireguardPeer(LinkName, PublicKey),
    /// A network from which a WireGuard peer may send packets and for which it receives them. It
    /// belongs to only one peer of the interface.
    AllowedIp(LinkName, IpNet),
    /// A route of the main table: destination and metric.
    Route(IpNet, u32),
}

impl Key {
    /// The link on which the object is; for a route, its device. `None` for a route without one.
    #[must_use]
    pub fn device(&self, value: &Value) -> Option<LinkName> {
        match (self, value) {
            (Key::Route(..), Value::Route(route)) => {
                Some(route.dev).filter(|dev| *dev != LinkName::default())
            }
            (Key::Route(..), _) => None,
            (
                Key::Link(name)
                | Key::Address(name, _)
                | Key::Fdb(name, _)
                | Key::Neighbor(name, _)
                | Key::WireguardPeer(name, _)
                | Key::AllowedIp(name, _),
                _,
            ) => Some(*name),
        }
    }

    /// The kind in log lines, such as `FDB entry`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Key::Link(_) => "link",
            Key::Address(..) => "address",
            Key::Fdb(..) => "FDB entry",
            Key::Neighbor(..) => "neighbour",
            Key::WireguardPeer(..) => "WireGuard peer",
            Key::AllowedIp(..) => "allowed IP",
            Key::Route(..) => "route",
        }
    }

    /// The value of a metric's label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Key::Fdb(..) => "fdb",
            Key::WireguardPeer(..) => "wireguard-peer",
            Key::AllowedIp(..) => "allowed-ip",
            Key::Link(_) | Key::Address(..) | Key::Neighbor(..) | Key::Route(..) => self.kind(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Link(name) => write!(f, "link {name}"),
            Key::Address(name, net) => write!(f, "address {net} on {name}"),
            Key::Fdb(name, mac) => write!(f, "FDB entry {mac} on {name}"),
            Key::Neighbor(name, ip) => write!(f, "neighbour {ip} on {name}"),
            Key::WireguardPeer(name, key) => write!(f, "WireGuard peer {key} on {name}"),
            Key::AllowedIp(name, net) => write!(f, "allowed IP {net} on {name}"),
            Key::Route(net, _) => write!(f, "route to {net}"),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Link(Box<LinkSpec>),
    /// The key contains all properties.
    Address,
    /// The underlay address to which the kernel sends the frames.
    Fdb(IpAddr),
    Neighbor(Mac),
    /// Boxed: `WireguardPeer` would enlarge every [`Value`], and ten thousand vxlan peers have
    /// thirty thousand values.
    WireguardPeer(Box<WireguardPeer>),
    /// The peer to which the allowed IP belongs.
    AllowedIp(PublicKey),
    Route(RouteSpec),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelState(pub BTreeMap<Key, Value>);

impl RouteSpec {
    /// The kernel object, with flannel's metric.
    #[must_use]
    pub fn leading_to(self, net: IpNet) -> (Key, Value) {
        (Key::Route(net, route::metric(&net)), Value::Route(self))
    }
}

impl KernelState {
    #[must_use]
    pub fn link(&self, name: LinkName) -> Option<&LinkSpec> {
        match self.0.get(&Key::Link(name)) {
            Some(Value::Link(spec)) => Some(spec),
            _ => None,
        }
    }

    pub fn links(&self) -> impl Iterator<Item = (LinkName, &LinkSpec)> {
        // Links come first in the order.
        self.0.iter().map_while(|(key, value)| match (key, value) {
            (Key::Link(name), Value::Link(spec)) => Some((*name, &**spec)),
            _ => None,
        })
    }

    /// The MAC or public key to which packets for each routed subnet go.
    #[must_use]
    pub fn identities(&self) -> BTreeMap<IpNet, String> {
        let of = |(key, value): (&Key, &Value)| match (key, value) {
            (Key::Route(net, _), Value::Route(route)) => {
                match self.0.get(&Key::Neighbor(route.dev, route.via?))? {
                    Value::Neighbor(mac) => Some((*net, mac.to_string())),
                    _ => None,
                }
            }
            (Key::AllowedIp(_, net), Value::AllowedIp(key)) => Some((*net, key.to_string())),
            _ => None,
        };
        self.0.iter().filter_map(of).collect()
    }

    pub fn set(&mut self, key: Key, value: Value) {
        self.0.insert(key, value);
    }

    /// Adds an interface with the first address of each subnet.
    pub fn set_device(
        &mut self,
        name: LinkName,
        link: LinkSpec,
        subnets: impl IntoIterator<Item = IpNet>,
    ) {
        self.set(Key::Link(name), Value::Link(Box::new(link)));
        for subnet in subnets {
            self.set(Key::Address(name, IpNet::from(subnet.network())), Value::Address);
        }
    }

    /// Inserts all objects at once, because separate insertions would leave half-empty B-tree
    /// nodes. Of several objects with the same key, the last takes precedence.
    pub fn add(&mut self, objects: impl IntoIterator<Item = (Key, Value)>) {
        self.0.append(&mut objects.into_iter().collect());
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// The object must not exist yet.
    Add(Key, Value),
    Replace(Key, Value),
    /// The second field is the object's existing content, so that the kernel deletes no other
    /// object.
    Delete(Key, Value),
    /// Changes nothing: a link of another kind has flannel's name. The reconciler reports the
    /// conflict.
    Refuse(Key, Value),
}

impl Op {
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Op::Add(key, _) | Op::Replace(key, _) | Op::Delete(key, _) | Op::Refuse(key, _) => key,
        }
    }

    #[must_use]
    pub fn value(&self) -> &Value {
        match self {
            Op::Add(_, value)
            | Op::Replace(_, value)
            | Op::Delete(_, value)
            | Op::Refuse(_, value) => value,
        }
    }

    /// The link on which the object is.
    pub(crate) fn device(&self) -> Option<LinkName> {
        self.key().device(self.value())
    }

    #[must_use]
    pub fn is_deletion(&self) -> bool {
        matches!(self, Op::Delete(..))
    }

    /// Of the two types of messages of a kind, such as RTM_NEWROUTE and RTM_DELROUTE, and its flags.
    pub(crate) fn kind_and_flags(&self, new: u16) -> (u16, u16) {
        match self {
            Op::Add(..) | Op::Refuse(..) => (new, NLM_F_CREATE | NLM_F_EXCL),
            Op::Replace(..) => (new, NLM_F_CREATE | NLM_F_REPLACE),
            Op::Delete(..) => (new + DELETION, 0),
        }
    }

    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Op::Add(..) => "add",
            Op::Replace(..) => "change",
            Op::Delete(..) => "delete",
            Op::Refuse(..) => "take over",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_value_take_at_most_88_bytes() {
        assert!(size_of::<(Key, Value)>() <= 88, "{} + {}", size_of::<Key>(), size_of::<Value>());
    }

    #[test]
    fn order_is_dependency() {
        let name = LinkName::parse("flannel.1").unwrap();
        let ip: IpAddr = "10.244.1.0".parse().unwrap();
        let keys = [
            Key::Link(LinkName::parse("z").unwrap()),
            Key::Address(name, IpNet::from(ip)),
            Key::Fdb(name, Mac([2; 6])),
            Key::Neighbor(name, ip),
            Key::WireguardPeer(name, PublicKey([9; 32])),
            Key::AllowedIp(name, IpNet::from(ip)),
            Key::Route(IpNet::from(ip), 0),
        ];
        assert!(keys.is_sorted());
    }
}
