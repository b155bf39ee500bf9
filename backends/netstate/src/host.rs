//! This host's interfaces and routes, of any origin, for the choice of the underlay and the doctor.

pub mod arp;
pub mod bridge;
pub(crate) mod ethtool;
pub mod lookup;
pub mod packet_socket;
pub mod port;
pub mod read;
pub mod tunnels;

use crate::names::Mac;
use ipnet::IpNet;
pub use netlink::address::Address;
pub use netlink::route::Route;
use netlink::uapi::{
    IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_PERMANENT, RT_TABLE_DEFAULT, RT_TABLE_LOCAL,
    RT_TABLE_MAIN,
};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use thiserror::Error;
use types::{Coded, Errno, Family, Profile};

/// A network interface of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    /// As in `ip -d link`: `bridge`, `vxlan`, `veth`; empty for hardware.
    pub kind: String,
    /// Administratively up.
    pub up: bool,
    pub carrier: bool,
    pub loopback: bool,
    /// IFF_NOARP: it neither sends nor answers address resolution requests.
    pub noarp: bool,
    /// The index of the bridge or bond of which this interface is a port.
    pub master: Option<u32>,
    /// In bytes.
    pub mtu: u32,
    /// `None` without an Ethernet address.
    pub mac: Option<Mac>,
    /// VNI and UDP port of a vxlan device.
    pub vxlan: Option<(u32, u16)>,
    /// A number of packets.
    pub received: u64,
    /// In the kernel's order.
    pub addresses: Vec<Address>,
}

/// Determines whether other hosts may be reachable through the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkClass {
    /// A network card, or a VLAN, bond or macvlan device on a network card.
    Link,
    /// An end of a veth pair: a pod's, or that of a host in a test environment.
    Veth,
    Bridge,
    /// A tunnel, a dummy, or another virtual device that is not a direct link to other hosts.
    Virtual,
}

impl Interface {
    #[must_use]
    pub fn class(&self) -> LinkClass {
        match self.kind.as_str() {
            "" | "vlan" | "bond" | "team" | "macvlan" | "ipvlan" | "ipoib" | "macsec" => {
                LinkClass::Link
            }
            "veth" => LinkClass::Veth,
            "bridge" => LinkClass::Bridge,
            _ => LinkClass::Virtual,
        }
    }

    /// Preferred addresses first.
    pub fn usable(&self, family: Family) -> Vec<IpAddr> {
        let mut addresses: Vec<&Address> = self
            .addresses
            .iter()
            .filter(|address| Family::from(address.net) == family && is_usable(address))
            .collect();
        addresses.sort_by_key(|address| {
            let ip = address.ip();
            let is_leased = !address.has(IFA_F_PERMANENT);
            (!is_global(ip), self.is_virtual(ip), is_leased, address.is_temporary())
        });
        addresses.into_iter().map(Address::ip).collect()
    }

    #[must_use]
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip() == ip)
    }

    /// As an address of a single host, without a network.
    #[must_use]
    pub fn has_single(&self, ip: IpAddr) -> bool {
        self.nets().any(|net| net.addr() == ip && is_single(&net))
    }

    /// True for an IPv4 address of a single host inside the network of another address, as of
    /// keepalived and kube-vip. Not for IPv6, where DHCP leases such addresses.
    #[must_use]
    pub fn is_virtual(&self, ip: IpAddr) -> bool {
        let mut nets = self.nets();
        ip.is_ipv4() && self.has_single(ip) && nets.any(|net| !is_single(&net) && net.contains(&ip))
    }

    /// flanneld's own probe port does not count.
    #[must_use]
    pub fn is_pods_end_in(&self, bridge: u32) -> bool {
        self.master == Some(bridge) && !port::is_port(&self.name)
    }

    pub fn nets(&self) -> impl Iterator<Item = IpNet> {
        self.addresses.iter().map(|address| address.net)
    }

    /// The usable addresses, or `no usable address`.
    #[must_use]
    pub fn addresses_text(&self) -> String {
        let usable: Vec<String> = self
            .addresses
            .iter()
            .filter(|address| is_usable(address))
            .map(|address| address.ip().to_string())
            .collect();
        if usable.is_empty() { "no usable address".to_owned() } else { usable.join(", ") }
    }
}

#[must_use]
pub fn is_single(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

#[must_use]
pub fn has_card(bridge: &Interface, all: &[Interface]) -> bool {
    all.iter().any(|port| port.master == Some(bridge.index) && port.class() == LinkClass::Link)
}

/// True for a device of flannel and for the host's end of a pod's veth pair. Also for a bridge
/// without a network card that has an address in a leased subnet, and for its ports. A veth with
/// the address of a whole network may be the uplink of a host in a container. `all` are the host's
/// interfaces.
pub fn serves_pods(
    interface: &Interface,
    all: &[Interface],
    backends: &[&Profile],
    is_leased: impl Fn(IpNet) -> bool,
) -> bool {
    let is_bridge = |device: &Interface| {
        device.class() == LinkClass::Bridge
            && !has_card(device, all)
            && device.nets().any(&is_leased)
    };
    let is_end = |net: IpNet| is_single(&net) && is_leased(net);
    let mut bridges = all.iter().filter(|bridge| interface.master == Some(bridge.index));
    crate::cleanup::is_flannels(backends, &interface.name, &interface.kind)
        || is_bridge(interface)
        || interface.class() == LinkClass::Veth && interface.nets().any(is_end)
        || bridges.any(is_bridge)
}

/// True if the address can be the source of packets between nodes.
#[must_use]
pub fn is_usable(address: &Address) -> bool {
    !address.has(IFA_F_DEPRECATED | IFA_F_DADFAILED)
        && !address.is_tentative()
        && (is_global(address.ip()) || is_link_local(address.ip()))
}

/// Why the address is not usable, for messages.
#[must_use]
pub fn unusable_state(address: &Address) -> &'static str {
    if address.has(IFA_F_DADFAILED) {
        "another host has this address (dadfailed)"
    } else if address.is_tentative() {
        "still tentative"
    } else if address.has(IFA_F_DEPRECATED) {
        "deprecated"
    } else {
        "not for traffic between hosts"
    }
}

/// As in Go's `IsGlobalUnicast`, which includes private addresses.
fn is_global(ip: IpAddr) -> bool {
    !(ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || is_link_local(ip)
        || ip == Ipv4Addr::BROADCAST)
}

/// The router of a NAT that a hypervisor gives each virtual machine, if a machine with the address
/// `net` is behind one. A hypervisor's *NAT network* does not match: it has another router address
/// and connects several machines.
#[must_use]
pub fn machine_nat(net: &IpNet) -> Option<IpAddr> {
    let IpNet::V4(net) = net else { return None };
    let [a, b, c, guest] = net.addr().octets();
    let router = Ipv4Addr::new(a, b, c, 2);
    let is_guest = match (a, b, c) {
        // QEMU's user network and VirtualBox's first adapter: the router's address is evidence enough.
        (10, 0, 2) => guest != 2,
        // VirtualBox's other adapters, and lima's network.
        (10, 0, 3..=5) | (192, 168, 5) => guest == 15,
        _ => false,
    };
    (is_guest && net.prefix_len() >= 24 && net.contains(&router)).then_some(router.into())
}

#[must_use]
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// A packet from another host or a pod whose route a caller looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Not an address of this host.
    pub from: IpAddr,
    pub to: IpAddr,
    /// The interface that receives the packet.
    pub incoming: u32,
}

/// A rule of policy routing, as in ip-rule(8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    pub family: Family,
    /// Rules with lower numbers come first.
    pub priority: u32,
    /// `None` matches all.
    pub from: Option<IpNet>,
    /// `None` matches all.
    pub to: Option<IpNet>,
    /// `None` matches any.
    pub incoming: Option<String>,
    /// The rule has a condition that some packets of a pod do not fulfil, such as a mark, socket,
    /// user or protocol.
    pub conditional: bool,
    /// The rule has `not`: it matches the packets that do not fulfil its conditions.
    pub inverted: bool,
    /// `None` if the rule drops the packet.
    pub table: Option<u32>,
    /// The destinations of the routes in the table; empty if flanneld did not read it.
    pub destinations: Vec<IpNet>,
}

impl PolicyRule {
    /// True if it matches all packets and leads to table `local`, `main` or `default`, like the
    /// kernel's own rules.
    #[must_use]
    pub fn is_standard(&self) -> bool {
        // The priority is not compared: VRFs and Cilium move these rules to other priorities.
        self.from.is_none()
            && self.to.is_none()
            && self.incoming.is_none()
            && !self.conditional
            && matches!(self.table, Some(RT_TABLE_DEFAULT | RT_TABLE_MAIN | RT_TABLE_LOCAL))
    }

    /// True if it matches all packets from `from` to `to` that arrive on `incoming`. A rule with a
    /// condition that such a packet might not fulfil does not match.
    #[must_use]
    pub fn is_about(&self, from: IpAddr, to: IpAddr, incoming: Option<&str>) -> bool {
        let holds = |net: &Option<IpNet>, ip: IpAddr| net.is_none_or(|net| net.contains(&ip));
        let fits = !self.conditional
            && holds(&self.from, from)
            && holds(&self.to, to)
            && (self.incoming.is_none() || self.incoming.as_deref() == incoming);
        self.family == Family::from(to) && fits != self.inverted
    }

    /// True if the rule drops the packet, or its table has a route to the destination. Otherwise
    /// the kernel continues with the next rule.
    ///
    /// The tables `main` and `default` are assumed to have a route.
    #[must_use]
    pub fn decides(&self, to: IpAddr) -> bool {
        match self.table {
            None | Some(RT_TABLE_DEFAULT | RT_TABLE_MAIN) => true,
            Some(RT_TABLE_LOCAL) => false,
            Some(_) => self.destinations.iter().any(|net| net.contains(&to)),
        }
    }
}

impl fmt::Display for PolicyRule {
    /// As `ip rule` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.priority)?;
        if self.inverted {
            f.write_str(" not")?;
        }
        match self.from {
            Some(from) => write!(f, " from {from}")?,
            None => f.write_str(" from all")?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        if let Some(incoming) = &self.incoming {
            write!(f, " iif {incoming}")?;
        }
        match self.table {
            Some(table) => write!(f, " lookup {table}"),
            None => f.write_str(" drop"),
        }
    }
}

/// A neighbour entry that the kernel created by address resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub address: IpAddr,
    /// `None` if no host answered.
    pub mac: Option<Mac>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum RouteError {
    /// `words` are the kernel's, and usually empty.
    #[error("{}{}{}", Errno(*errno), if .words.trim().is_empty() { "" } else { ": " }, .words.trim())]
    #[code("no-route")]
    Refused { errno: i32, words: String },
    #[error("the kernel does not respond")]
    #[code("route-unanswered")]
    Unanswered,
    #[error("the route has no outgoing interface")]
    #[code("route-without-interface")]
    WithoutInterface,
}
