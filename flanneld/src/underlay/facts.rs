//! What is known about this host's interfaces, addresses and routes.

use ipnet::IpNet;
use std::net::IpAddr;

/// Everything that the choice of an interface rests on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Interfaces, in the order of their indexes.
    pub interfaces: Vec<Interface>,
    /// Default routes of the main table, the preferred ones first.
    pub defaults: Vec<DefaultRoute>,
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
    /// Whether it is up, as the administrator decides.
    pub up: bool,
    /// Whether it has a carrier: the cable is plugged in, the other end is up.
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
    /// Whether it has no end of life.
    pub permanent: bool,
    /// Whether it should not be used for new connections.
    pub deprecated: bool,
    /// Whether it is an IPv6 privacy address.
    pub temporary: bool,
    /// Whether duplicate address detection has not ended yet.
    pub tentative: bool,
    /// Whether another host has it.
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

    /// Whether packets between nodes can come from it.
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

/// Whether an address means something on one link only.
pub(super) fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// One default route, or one path of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Whether it is IPv6's.
    pub ipv6: bool,
    /// The interface it leaves by, if by any.
    pub index: Option<u32>,
    /// Its metric.
    pub metric: u32,
    /// Whether it carries packets: false for `unreachable`, `blackhole`, `prohibit`.
    pub carries: bool,
}

/// Where the kernel would send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// The interface it leaves by; the loopback one for this host's own addresses.
    pub index: u32,
    /// The source address it would have.
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

    /// Its addresses for people: those that can be used, else all.
    pub fn addresses_text(&self) -> String {
        let usable: Vec<String> = self.addresses.iter().filter(|address| address.usable()).map(|address| address.ip().to_string()).collect();
        if usable.is_empty() { "no usable address".to_owned() } else { usable.join(", ") }
    }
}

impl HostFacts {
    /// The interface of an index.
    pub fn by_index(&self, index: u32) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.index == index)
    }

    /// The interface of a name.
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The first interface that has an address.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.owns(ip))
    }

    /// Every address of this host; of link-local ones only the underlay's, since each pod's link brings one that says nothing.
    pub fn local(&self, underlay: u32) -> Vec<IpNet> {
        let of = |interface: &Interface| -> Vec<IpNet> {
            let counts = |address: &&Address| interface.index == underlay || !link_local(address.ip());
            interface.addresses.iter().filter(counts).map(|address| address.net).collect()
        };
        // Our own devices come and go, and nobody is reached at their addresses.
        self.interfaces.iter().filter(|interface| !interface.name.starts_with("flannel")).flat_map(of).collect()
    }

    /// The interface by which an address is reached: its owner where the address is this host's.
    ///
    /// # Errors
    /// Why the kernel knows none.
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
