//! What a kernel holds for us: links, addresses, FDB entries, neighbours, routes, in the order in which they depend on each other.

use super::names::{LinkName, Mac};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use subnet_lease::Subnets;

/// What identifies a kernel object. INVARIANT: the order is the order of dependency: what is lower is set first and deleted last.
///
/// FDB before neighbour: a neighbour whose MAC has no FDB entry yet would cut a live peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// An interface.
    Link(LinkName),
    /// An address on an interface.
    Address(LinkName, IpNet),
    /// Where frames to a MAC are sent.
    Fdb(LinkName, Mac),
    /// The MAC of an address on an interface.
    Neighbor(LinkName, IpAddr),
    /// A route of the main table: destination and metric.
    Route(IpNet, u32),
}

impl Key {
    /// The interface on which the object hangs, as far as the key tells.
    pub fn link(&self) -> Option<LinkName> {
        match self {
            Key::Link(name) | Key::Address(name, _) | Key::Fdb(name, _) | Key::Neighbor(name, _) => Some(*name),
            Key::Route(..) => None,
        }
    }

    /// What kind of object it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Key::Link(_) => "link",
            Key::Address(..) => "address",
            Key::Fdb(..) => "FDB entry",
            Key::Neighbor(..) => "neighbour",
            Key::Route(..) => "route",
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
            Key::Route(net, _) => write!(f, "route to {net}"),
        }
    }
}

/// The content of a kernel object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// An interface.
    Link(Box<LinkSpec>),
    /// An address has no content beside its key.
    Address,
    /// Where the frames go.
    Fdb(IpAddr),
    /// The MAC.
    Neighbor(Mac),
    /// A route.
    Route(RouteSpec),
}

/// The content of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteSpec {
    /// The gateway.
    pub via: Option<IpAddr>,
    /// The outgoing interface; the empty name where the kernel has none or several.
    pub dev: LinkName,
    /// Whether the gateway is taken as reachable on the interface, whatever the addresses say.
    pub onlink: bool,
    /// What happens to packets.
    pub kind: RouteKind,
    /// Distance to the destination; 0 is universe.
    pub scope: u8,
    /// Who made it; ours carry our mark, what Go flannel left carries `boot`.
    pub protocol: u8,
}

/// What a route does with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteKind {
    /// Sends them on.
    Unicast,
    /// Swallows them.
    Blackhole,
    /// Anything else (RTN_*); never wanted, only found.
    Other(u8),
}

/// An interface as it should be or is. A `None` in what is wanted leaves that property alone; in what is found it is unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkSpec {
    /// Its kind and what belongs to that.
    pub kind: LinkKind,
    /// Its MAC.
    pub mac: Option<Mac>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether the kernel listens to router advertisements on it.
    pub accept_ra: Option<bool>,
    /// Whether the device is trusted with transmit checksums (ethtool's `tx`).
    pub checksum_offload: Option<bool>,
}

/// Kinds of interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// A vxlan tunnel end.
    Vxlan(VxlanSpec),
    /// A TUN device: ours or Go flannel's from another mode.
    Tun {
        /// Whether our packet engine is behind it; without it nothing that enters it goes anywhere.
        held: bool,
    },
    /// Anything else; never wanted, only found.
    Other(String),
}

/// What belongs to a vxlan interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VxlanSpec {
    /// The network identifier.
    pub vni: u32,
    /// The UDP port; `None` leaves it to the kernel (8472).
    pub port: Option<u16>,
    /// The outer source address.
    pub local: Option<IpAddr>,
    /// Index of the interface below: an index survives a renaming.
    pub lower: u32,
    /// Whether the kernel learns FDB entries from traffic.
    pub learning: bool,
    /// Group based policy.
    pub gbp: bool,
}

/// How a found link relates to the wanted one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Nothing to do.
    Same,
    /// A property differs that can be changed in place.
    Change,
    /// A property differs that is fixed at creation.
    Rebuild,
    /// Somebody else's link has our name.
    Refused,
}

impl LinkSpec {
    /// How `found` relates to this wanted link.
    pub fn fit(&self, found: &LinkSpec) -> Fit {
        let differs = |want: Option<bool>, have: Option<bool>| matches!((want, have), (Some(a), Some(b)) if a != b);
        let in_place = match (&self.kind, &found.kind) {
            (LinkKind::Vxlan(want), LinkKind::Vxlan(have)) => {
                let port = want.port.is_some() && have.port.is_some() && want.port != have.port;
                if want.vni != have.vni || want.gbp != have.gbp || port {
                    return Fit::Rebuild;
                }
                want.local != have.local || want.lower != have.lower || want.learning != have.learning
            }
            (LinkKind::Vxlan(_), LinkKind::Tun { .. }) | (LinkKind::Tun { .. }, LinkKind::Vxlan(_)) => return Fit::Rebuild,
            (LinkKind::Tun { held: want }, LinkKind::Tun { held: have }) if want != have => return Fit::Rebuild,
            (LinkKind::Tun { .. }, LinkKind::Tun { .. }) => false,
            (LinkKind::Other(want), LinkKind::Other(have)) if want == have => false,
            _ => return Fit::Refused,
        };
        let change = in_place
            || self.mtu != found.mtu
            || self.up != found.up
            || (self.mac.is_some() && self.mac != found.mac)
            || differs(self.accept_ra, found.accept_ra)
            || differs(self.checksum_offload, found.checksum_offload);
        if change { Fit::Change } else { Fit::Same }
    }
}

/// Kernel objects by key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelState(pub BTreeMap<Key, Value>);

impl KernelState {
    /// The interface of that name.
    pub fn link(&self, name: LinkName) -> Option<&LinkSpec> {
        match self.0.get(&Key::Link(name)) {
            Some(Value::Link(spec)) => Some(spec),
            _ => None,
        }
    }

    /// Sets an object.
    pub fn set(&mut self, key: Key, value: Value) {
        self.0.insert(key, value);
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One change of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes an object that must not be there yet.
    Add(Key, Value),
    /// Changes an object that is ours.
    Replace(Key, Value),
    /// Removes an object; the value is what is there, so that nothing else is hit.
    Delete(Key, Value),
    /// A link of another kind has our name: nothing is done, and this is reported.
    Refuse(Key, Value),
}

impl Op {
    /// The object that it is about.
    pub fn key(&self) -> &Key {
        match self {
            Op::Add(key, _) | Op::Replace(key, _) | Op::Delete(key, _) | Op::Refuse(key, _) => key,
        }
    }

    /// What is done, for people.
    pub fn verb(&self) -> &'static str {
        match self {
            Op::Add(..) => "add",
            Op::Replace(..) => "change",
            Op::Delete(..) => "delete",
            Op::Refuse(..) => "take over",
        }
    }
}

/// The networks that this node had when it ran last, as subnet.env tells.
pub type Formerly = (Option<Ipv4Net>, Option<Ipv6Net>);

/// Which kernel objects are ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Interfaces that belong to us, by name.
    pub links: Vec<LinkName>,
    /// Only objects inside these networks are ours.
    pub networks: Subnets,
    /// The networks of the former run: what it left of them is ours too, and wanted no more.
    pub former: Formerly,
    /// The mark of our routes.
    pub protocol: u8,
    /// Whether the checksum switch of our links has to be read.
    pub checksum_offload: bool,
}

impl Scope {
    /// Whether a destination lies inside our networks.
    pub fn covers(&self, net: &IpNet) -> bool {
        match net {
            IpNet::V4(net) => self.networks.v4().is_some_and(|network| network.contains(net)),
            IpNet::V6(net) => self.networks.v6().is_some_and(|network| network.contains(net)),
        }
    }

    /// Whether a destination lay inside our networks in the former run, and does not now.
    pub fn covered(&self, net: &IpNet) -> bool {
        let inside = match net {
            IpNet::V4(net) => self.former.0.is_some_and(|network| network.contains(net)),
            IpNet::V6(net) => self.former.1.is_some_and(|network| network.contains(net)),
        };
        inside && !self.covers(net)
    }

    /// Whether an address lies inside our networks.
    pub fn covers_ip(&self, ip: &IpAddr) -> bool {
        self.covers(&IpNet::from(*ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_former_network_left_is_told_from_what_others_have() {
        let networks = Subnets::V4("10.6.0.0/17".parse().unwrap());
        let former = (Some("10.6.0.0/16".parse().unwrap()), Some("fd00:5::/48".parse().unwrap()));
        let scope = Scope { links: Vec::new(), networks, former, protocol: 241, checksum_offload: false };
        for (net, covers, covered) in [
            ("10.6.1.0/24", true, false),
            ("10.6.200.0/24", false, true),
            ("10.6.0.0/16", false, true),
            ("10.7.0.0/24", false, false),
            ("10.0.0.0/8", false, false),
            ("fd00:5:0:1::/64", false, true),
            ("fd00:6:0:1::/64", false, false),
        ] {
            let net: IpNet = net.parse().unwrap();
            assert_eq!((scope.covers(&net), scope.covered(&net)), (covers, covered), "{net}");
        }
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
            Key::Route(IpNet::from(ip), 0),
        ];
        assert!(keys.is_sorted());
    }
}
