//! Facts about this host's interfaces, addresses and routes.

use ipnet::IpNet;
use std::net::IpAddr;

/// Everything that the choice of an interface depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Interfaces, ordered by index.
    pub interfaces: Vec<Interface>,
    /// Default routes of the main table, the preferred ones first.
    pub defaults: Vec<DefaultRoute>,
    /// Networks that an interface reaches without a gateway, by the routes of the main table.
    pub links: Vec<(u32, IpNet)>,
    /// Answers to route look-ups; an error is the kernel's text.
    pub routes: Vec<(IpAddr, Result<RouteAnswer, String>)>,
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Its MTU.
    pub mtu: u32,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<Address>,
}

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address with its prefix length.
    pub net: IpNet,
    /// Whether it is permanent.
    pub permanent: bool,
    /// Whether it is deprecated.
    pub deprecated: bool,
    /// Whether it is an IPv6 privacy address.
    pub temporary: bool,
    /// Whether duplicate address detection is still running.
    pub tentative: bool,
    /// Whether duplicate address detection failed: another host has it.
    pub dad_failed: bool,
}

impl Address {
    /// A permanent address without any flag.
    pub fn plain(net: IpNet) -> Self {
        Self { net, permanent: true, deprecated: false, temporary: false, tentative: false, dad_failed: false }
    }

    /// The address itself.
    pub fn ip(&self) -> IpAddr {
        self.net.addr()
    }

    /// Whether it can be the source of packets between nodes.
    pub fn usable(&self) -> bool {
        !self.deprecated && !self.tentative && !self.dad_failed && (global(self.ip()) || link_local(self.ip()))
    }

    /// Why it is not usable, in words.
    pub(super) fn state(&self) -> &'static str {
        if self.dad_failed {
            "another host has it (dadfailed)"
        } else if self.tentative {
            "still tentative"
        } else if self.deprecated {
            "deprecated"
        } else {
            "not for traffic between hosts"
        }
    }

    /// Order of preference; the lowest first.
    fn rank(&self) -> (bool, bool, bool) {
        (!global(self.ip()), !self.permanent, self.temporary)
    }
}

/// Go's `IsGlobalUnicast`: private addresses count.
fn global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_loopback() || v4.is_multicast() || v4.is_link_local() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() || v6.is_unicast_link_local()),
    }
}

/// Whether an address is link-local.
pub(super) fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// One default route, or one path of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Whether it is an IPv6 route.
    pub ipv6: bool,
    /// The outgoing interface, if any.
    pub index: Option<u32>,
    /// Its metric.
    pub metric: u32,
    /// Whether it forwards packets: false for `unreachable`, `blackhole`, `prohibit`.
    pub carries: bool,
}

/// Where the kernel would send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// The outgoing interface; the loopback interface for this host's own addresses.
    pub index: u32,
    /// The source address.
    pub source: Option<IpAddr>,
}

impl Interface {
    /// Usable addresses of a family, the preferred first.
    pub fn usable(&self, ipv6: bool) -> Vec<IpAddr> {
        let mut addresses: Vec<&Address> = self.addresses.iter().filter(|address| address.ip().is_ipv6() == ipv6 && address.usable()).collect();
        addresses.sort_by_key(|address| address.rank());
        addresses.into_iter().map(Address::ip).collect()
    }

    /// Whether it has an address.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip() == ip)
    }

    /// Its addresses as text: the usable ones, else all.
    pub fn addresses_text(&self) -> String {
        let usable: Vec<String> = self.addresses.iter().filter(|address| address.usable()).map(|address| address.ip().to_string()).collect();
        if usable.is_empty() { "no usable address".to_owned() } else { usable.join(", ") }
    }
}

impl HostFacts {
    /// The interface with an index.
    pub fn by_index(&self, index: u32) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.index == index)
    }

    /// The interface with a name.
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The first interface that has an address.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.owns(ip))
    }

    /// All addresses of this host. Link-local ones only of the underlay, since every pod's link has a meaningless one.
    pub fn local(&self, underlay: u32) -> Vec<IpNet> {
        let of = |interface: &Interface| -> Vec<IpNet> {
            let counts = |address: &&Address| interface.index == underlay || !link_local(address.ip());
            interface.addresses.iter().filter(counts).map(|address| address.net).collect()
        };
        // Our own devices come and go, and their addresses reach no node.
        self.interfaces.iter().filter(|interface| !interface.name.starts_with("flannel")).flat_map(of).collect()
    }

    /// The networks that an interface reaches without a gateway.
    pub fn links(&self, index: u32) -> Vec<IpNet> {
        self.links.iter().filter(|(interface, _)| *interface == index).map(|(_, net)| *net).collect()
    }

    /// The interface through which an address is reached; for an address of this host, its owner.
    ///
    /// # Errors
    /// Why the kernel has no route.
    pub fn towards(&self, target: IpAddr) -> Result<(&Interface, Option<IpAddr>), String> {
        if let Some(owner) = self.owner(target) {
            return Ok((owner, Some(target)));
        }
        match self.routes.iter().find(|(asked, _)| *asked == target) {
            Some((_, Ok(answer))) => {
                let interface = self.by_index(answer.index).ok_or_else(|| format!("interface {} of the route is gone", answer.index))?;
                Ok((interface, answer.source))
            }
            Some((_, Err(why))) => Err(why.clone()),
            None => Err("the route was not looked up".to_owned()),
        }
    }
}
