//! Facts about this host's interfaces, addresses and routes.

use ipnet::IpNet;
use netstate::host::{Address, Interface, LinkClass, NoRoute, Route, RouteAnswer, is_link_local};
use std::fmt;
use std::net::IpAddr;
use types::problem::{Coded, text};

/// Facts about this host on which the choice of the underlay interface depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Interfaces of this host, ordered by index.
    pub interfaces: Vec<Interface>,
    /// Default routes of the main table, preferred routes first. Each path of a multipath route is a separate entry.
    pub defaults: Vec<Route>,
    /// Networks that this host reaches without a gateway according to the main table's routes, each with the
    /// interface's index.
    pub links: Vec<(u32, IpNet)>,
    /// Destination addresses, each with the result of the kernel's route lookup.
    pub routes: Vec<(IpAddr, Result<RouteAnswer, NoRoute>)>,
    /// Addresses of other hosts that replied to ARP, with the index of the interface. This node sends ARP
    /// requests only where an interface may be behind a machine's own NAT.
    pub answering: Vec<(u32, IpAddr)>,
    /// Addresses of this host that other nodes claim, although certainly no other host has them.
    pub unshared: Vec<IpAddr>,
}

/// Reason why flanneld knows no interface that leads to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Lack of a route to the address in the kernel.
    Route(NoRoute),
    /// A route whose interface is gone.
    Gone {
        /// Index of the interface.
        index: u32,
    },
    /// A route that flanneld did not look up.
    NotAsked,
}

impl Coded for Unreachable {
    fn code(&self) -> &'static str {
        match self {
            Unreachable::Route(why) => why.code(),
            Unreachable::Gone { .. } => "route-interface-gone",
            Unreachable::NotAsked => "route-not-asked",
        }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| match self {
            Unreachable::Route(why) => why.fmt(f),
            Unreachable::Gone { index } => write!(f, "interface {index} of the route is gone"),
            Unreachable::NotAsked => f.write_str("flanneld did not look up the route"),
        })
    }
}

impl std::error::Error for Unreachable {}

impl HostFacts {
    /// Returns whether the choice of an interface depends on this route.
    pub fn needs(route: &Route) -> bool {
        route.is_default() || route.link().is_some()
    }

    /// Records the default routes, and the networks that need no gateway, from the main table's routes.
    pub fn take(&mut self, routes: Vec<Route>) {
        self.links = routes
            .iter()
            .filter_map(|route| Some((route.link()?, route.to)))
            .collect();
        self.defaults = routes
            .into_iter()
            .filter(Route::is_default)
            .flat_map(Route::split)
            .collect();
        self.defaults
            .sort_by_key(|route| (route.family(), route.metric));
    }

    /// Returns whether an interface may lead to other hosts, according to the interface's type and addresses. Pods'
    /// veth devices and bridges do not lead to other hosts.
    pub fn joins_hosts(&self, interface: &Interface) -> bool {
        let is_link = match interface.class() {
            LinkClass::Link | LinkClass::Veth => true,
            LinkClass::Bridge => self.interfaces.iter().any(|port| {
                port.master == Some(interface.index) && port.class() == LinkClass::Link
            }),
            LinkClass::Virtual => false,
        };
        let has_room =
            |net: IpNet| net.prefix_len() < net.max_prefix_len() && !is_link_local(net.addr());
        let is_between = interface
            .addresses
            .iter()
            .any(|address| address.usable() && has_room(address.net));
        interface.up && !interface.loopback && interface.master.is_none() && is_link && is_between
    }

    /// Returns whether messages of flanneld list an interface. Messages omit the loopback interface and pods'
    /// interfaces.
    pub fn is_shown(&self, interface: &Interface) -> bool {
        let of_pods = matches!(interface.class(), LinkClass::Veth | LinkClass::Bridge)
            && !self.joins_hosts(interface);
        !interface.loopback && interface.master.is_none() && !of_pods
    }

    /// Returns the interface with the index `index`.
    pub fn by_index(&self, index: u32) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.index == index)
    }

    /// Returns the interface with the name `name`.
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.name == name)
    }

    /// Returns the first interface that has the address `ip`.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.owns(ip))
    }

    /// Returns the addresses of this host. Omits addresses of flannel's devices. Also omits link-local
    /// addresses, except on the underlay, because every pod's interface has a link-local address.
    pub fn local(&self, underlay: u32) -> Vec<IpNet> {
        let of = |interface: &Interface| -> Vec<IpNet> {
            let counts =
                |address: &&Address| interface.index == underlay || !is_link_local(address.ip());
            interface
                .addresses
                .iter()
                .filter(counts)
                .map(|address| address.net)
                .collect()
        };
        // flannel's own devices come and go, and their addresses reach no node.
        self.interfaces
            .iter()
            .filter(|interface| !interface.name.starts_with("flannel"))
            .flat_map(of)
            .collect()
    }

    /// Returns the networks that the interface reaches without a gateway.
    pub fn links(&self, index: u32) -> Vec<IpNet> {
        self.links
            .iter()
            .filter(|(interface, _)| *interface == index)
            .map(|(_, net)| *net)
            .collect()
    }

    /// Returns the interface through which this host reaches an address. If `target` is an address of this host,
    /// returns the interface that has the address.
    ///
    /// # Errors
    /// Returns an error if the kernel has no route, the route's interface is gone, or flanneld did not look up the
    /// route.
    pub fn towards(&self, target: IpAddr) -> Result<(&Interface, Option<IpAddr>), Unreachable> {
        if let Some(owner) = self.owner(target) {
            return Ok((owner, Some(target)));
        }
        match self.routes.iter().find(|(asked, _)| *asked == target) {
            Some((_, Ok(answer))) => {
                let interface = self.by_index(answer.index).ok_or(Unreachable::Gone {
                    index: answer.index,
                })?;
                Ok((interface, answer.source))
            }
            Some((_, Err(why))) => Err(Unreachable::Route(why.clone())),
            None => Err(Unreachable::NotAsked),
        }
    }
}
