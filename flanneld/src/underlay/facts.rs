//! Facts about this host's interfaces, addresses and routes.

use backends::profiles;
use ipnet::IpNet;
use netstate::host::{
    Interface, LinkClass, Route, RouteError, has_card, is_link_local, is_single, is_usable,
    serves_pods,
};
use std::net::IpAddr;
use types::{Family, Problem, Subnets, barred_by};

/// The choice of the underlay interface depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Ordered by index.
    pub interfaces: Vec<Interface>,
    /// Of the main table, preferred routes first. Each path of a multipath route is a separate entry.
    pub defaults: Vec<Route>,
    /// Networks that this host reaches without a gateway according to the main table's routes, each with the
    /// interface's index.
    pub links: Vec<(u32, IpNet)>,
    /// Destination addresses, each with the result of the kernel's route lookup.
    pub routes: Vec<(IpAddr, Result<Route, RouteError>)>,
    /// Addresses of other hosts that replied to ARP, with the index of the interface. This node sends ARP requests
    /// only where an interface may be behind a machine's own NAT.
    pub answering: Vec<(u32, IpAddr)>,
    /// Addresses of this host that other nodes claim, although certainly no other host has them.
    pub unshared: Vec<IpAddr>,
    /// By these, flanneld recognises interfaces of pods.
    pub leased: Leased,
}

/// What flanneld knows from leases before it chooses the underlay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    pub own: Vec<IpNet>,
    /// The subnet that the store assigned to this node, unless the node served it before, and the networks of pods.
    pub assigned: Option<(Subnets, Subnets)>,
    /// Of the leases in the store. Anybody who writes a lease adds a subnet.
    pub all: Vec<IpNet>,
    /// Addresses that this node's lease publishes.
    pub published: Vec<IpAddr>,
    /// Addresses that a few other nodes publish.
    pub peers: Vec<IpAddr>,
}

/// MTU of Ethernet, in bytes.
const ETHERNET: u32 = 1500;

fn has_room(net: &IpNet) -> bool {
    !is_single(net) && !is_link_local(net.addr())
}

impl HostFacts {
    /// True if the choice of an interface depends on this route.
    pub fn needs(route: &Route) -> bool {
        route.is_default() || route.link().is_some()
    }

    /// Records the default routes, and the networks that need no gateway.
    pub fn take(&mut self, routes: Vec<Route>) {
        self.links = routes.iter().filter_map(|route| Some((route.link()?, route.net))).collect();
        self.defaults =
            routes.into_iter().filter(Route::is_default).flat_map(Route::split).collect();
        self.defaults.sort_by_key(|route| (Family::from(route.net), route.metric));
    }

    /// True if an interface belongs to flannel or its pods, and is therefore never the underlay.
    pub fn serves_pods(&self, interface: &Interface) -> bool {
        serves_pods(interface, &self.interfaces, &profiles(), |net| {
            let mut subnets = self.leased.own.iter().chain(&self.leased.all);
            subnets.any(|subnet| subnet.contains(&net))
        })
    }

    /// The usable addresses that may be the underlay's, preferred ones first. Every way to choose or to follow the
    /// underlay takes the addresses from here.
    pub fn eligible(&self, interface: &Interface, family: Family) -> Vec<IpAddr> {
        if self.serves_pods(interface) {
            return Vec::new();
        }
        let mut addresses = interface.usable(family);
        addresses.retain(|ip| self.own_subnet_around(*ip).is_none());
        addresses.sort_by_key(|ip| self.leased_around(*ip).is_some());
        addresses
    }

    /// This node's subnet that contains an address, unless the node's lease publishes the address: what worked before
    /// stays.
    pub fn own_subnet_around(&self, ip: IpAddr) -> Option<IpNet> {
        let leased = &self.leased;
        let mut own = leased.own.iter().copied();
        own.find(|net| net.contains(&ip) && !leased.published.contains(&ip))
    }

    /// A leased subnet that contains an address. Such an address is only a last resort; but whoever writes a lease
    /// must not keep this node from its address.
    pub fn leased_around(&self, ip: IpAddr) -> Option<IpNet> {
        let mut all = self.leased.all.iter().copied();
        all.find(|net| net.contains(&ip))
    }

    /// Of packets that leave this host with an address of an interface. Packets with an address of the loopback
    /// interface leave through the interfaces of the routes to other nodes, or of the default routes.
    pub fn mtu(&self, interface: &Interface) -> u32 {
        if !interface.loopback {
            return interface.mtu;
        }
        let found = self.routes.iter().filter_map(|(_, found)| found.as_ref().ok());
        let defaults = self.defaults.iter().map(|route| route.index);
        let leading = found.map(|answer| answer.index).chain(defaults);
        let leading = leading.filter_map(|index| self.by_index(index));
        let leading = leading.filter(|leading| !leading.loopback && !self.serves_pods(leading));
        leading.map(|leading| leading.mtu).min().unwrap_or(ETHERNET)
    }

    /// The networks that this host shares with other hosts and that no subnet of this node may overlap, each with its
    /// interface. The first pod would take such a network away from the host.
    pub fn shared_networks(&self, pods: &Subnets) -> impl Iterator<Item = (&Interface, IpNet)> {
        let joining = self.interfaces.iter().filter(|interface| self.joins_hosts(interface));
        let nets = joining.flat_map(|interface| interface.nets().map(move |net| (interface, net)));
        nets.filter(|(_, net)| has_room(net))
            .map(|(interface, net)| (interface, barred_by(&net, pods)))
    }

    /// That the subnet that the store assigned to this node overlaps a network of this host, and the remedy.
    pub fn clash(&self) -> Option<String> {
        let (assigned, pods) = self.leased.assigned?;
        let mut shared = self.shared_networks(&pods);
        let (Interface { name, .. }, net) =
            shared.find(|(_, net)| assigned.overlaps(&(*net).into()))?;
        Some(format!(
            "podCIDR {assigned} of this node overlaps {net} on {name}: the first pod would cut this host off from {name}. Choose a pod network that no host uses (kubeadm's --pod-network-cidr, and Network in the ConfigMap kube-flannel-cfg), delete this Node (kubectl delete node), and restart its kubelet, which registers the Node again"
        ))
    }

    /// True if an interface may lead to other hosts, by its type and addresses. Pods' veth devices and bridges do
    /// not.
    pub fn joins_hosts(&self, interface: &Interface) -> bool {
        let is_link = match interface.class() {
            LinkClass::Link | LinkClass::Veth => !self.serves_pods(interface),
            LinkClass::Bridge => has_card(interface, &self.interfaces),
            LinkClass::Virtual => false,
        };
        let is_between =
            interface.addresses.iter().any(|address| is_usable(address) && has_room(&address.net));
        interface.up && !interface.loopback && interface.master.is_none() && is_link && is_between
    }

    /// Messages of flanneld omit the loopback interface and pods' interfaces.
    pub fn is_shown(&self, interface: &Interface) -> bool {
        let of_pods = matches!(interface.class(), LinkClass::Veth | LinkClass::Bridge)
            && !self.joins_hosts(interface);
        !interface.loopback && interface.master.is_none() && !of_pods
    }

    pub fn by_index(&self, index: u32) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.index == index)
    }

    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The first interface that has the address.
    pub fn owner(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.owns(ip))
    }

    /// The addresses of this host. Omits addresses of flannel's devices, and link-local addresses except on the
    /// underlay, because every pod's interface has one.
    pub fn local(&self, underlay: u32) -> Vec<IpNet> {
        // flannel's own devices come and go, and their addresses reach no node.
        let others = self.interfaces.iter();
        let others = others.filter(|interface| !interface.name.starts_with("flannel"));
        let nets = others.flat_map(|interface| interface.nets().map(move |net| (interface, net)));
        nets.filter(|(interface, net)| interface.index == underlay || !is_link_local(net.addr()))
            .map(|(_, net)| net)
            .collect()
    }

    /// The networks that the interface reaches without a gateway.
    pub fn links(&self, index: u32) -> Vec<IpNet> {
        self.links
            .iter()
            .filter(|(interface, _)| *interface == index)
            .map(|(_, net)| *net)
            .collect()
    }

    /// The interface through which this host reaches an address. For an address of this host, the interface that has
    /// it.
    pub fn towards(&self, target: IpAddr) -> Result<(&Interface, Option<IpAddr>), Problem> {
        if let Some(owner) = self.owner(target) {
            return Ok((owner, Some(target)));
        }
        match self.routes.iter().find(|(asked, _)| *asked == target) {
            Some((_, Ok(Route { index, source, .. }))) => {
                let interface = self.by_index(*index).ok_or_else(|| {
                    let text = format!("interface {index} of the route is gone");
                    Problem::new("route-interface-gone", text)
                })?;
                Ok((interface, *source))
            }
            Some((_, Err(why))) => Err(why.clone().into()),
            None => Err(Problem::new("route-not-asked", "flanneld did not look up the route")),
        }
    }
}
