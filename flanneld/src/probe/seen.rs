//! What was seen of a way: facts, for the judgement.

use doctor::{Report, Severity};
use ipnet::IpNet;
use netstate::names::{LinkName, Mac};
use netstate::netlink::lookup::{Behind, Fate, Neighbour};
use netstate::object::{Key, Value};
use netstate::route::{RouteKind, RouteSpec};
use netstate::wireguard::PublicKey;
use probing::target::Target;
use probing::view::Tally;
use std::net::IpAddr;
use types::Encapsulation;

/// The way to a peer, and to a pod of it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The peer.
    pub target: Target,
    /// The pod.
    pub pod: Option<IpAddr>,
    /// The address in the peer's subnet whose route was looked up.
    pub to: IpAddr,
    /// What the lease wants in the kernel.
    pub wanted: Wanted,
    /// Where packets to that address leave.
    pub fate: Result<Fate, String>,
    /// The next hop, where the lease wants one.
    pub neighbour: Option<Result<Neighbour, String>>,
    /// Where its frames go, where the lease wants that.
    pub fdb: Option<Result<Option<IpAddr>, String>>,
    /// The peer of WireGuard to which packets for the subnet go, where the lease wants one.
    pub tunnelled: Option<Result<Option<Behind>, String>>,
    /// Where packets to the peer itself leave.
    pub beside: Result<Fate, String>,
    /// What was asked and answered.
    pub heard: Heard,
    /// What keeps packets on this node.
    pub rules: Rules,
    /// Pings of the pod, if they were sent.
    pub pinged: Option<Result<Tally, String>>,
    /// What this node uses.
    pub own: Own,
}

/// What this node uses.
#[derive(Clone, Debug)]
pub struct Own {
    /// The network of this family.
    pub network: IpNet,
    /// What packets of pods travel in between nodes, with one port; none if they are not encapsulated.
    pub tunnel: Option<Encapsulation>,
    /// The UDP port of probes.
    pub probes: u16,
    /// The interface for packets between nodes.
    pub interface: String,
    /// The address from which it sends to nodes.
    pub address: Option<IpAddr>,
    /// The address from which it asks through the overlay network.
    pub overlay: Option<IpAddr>,
}

/// What a lease wants in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The route that leads there.
    pub route: Option<(IpNet, RouteSpec)>,
    /// The hardware address of the next hop.
    pub neighbour: Option<(LinkName, IpAddr, Mac)>,
    /// The node behind that hardware address.
    pub fdb: Option<(LinkName, Mac, IpAddr)>,
    /// The peer of WireGuard to which the subnet's packets go.
    pub tunnelled: Option<(LinkName, IpNet, PublicKey)>,
}

impl Wanted {
    /// From the objects that the backend needs.
    pub fn of(objects: &[(Key, Value)]) -> Self {
        let mut wanted = Self::default();
        for object in objects {
            match object {
                (Key::Route(net, _), Value::Route(route)) => wanted.route = wanted.route.or(Some((*net, *route))),
                (Key::Neighbor(dev, ip), Value::Neighbor(mac)) => wanted.neighbour = Some((*dev, *ip, *mac)),
                (Key::Fdb(dev, mac), Value::Fdb(ip)) => wanted.fdb = Some((*dev, *mac, *ip)),
                (Key::AllowedIp(dev, net), Value::AllowedIp(key)) => wanted.tunnelled = Some((*dev, *net, *key)),
                _ => {}
            }
        }
        wanted
    }

    /// With WireGuard, one route for the whole network leads to all peers.
    #[must_use]
    pub fn in_network(mut self, network: IpNet) -> Self {
        if let (None, Some((dev, ..))) = (&self.route, self.tunnelled) {
            let route = RouteSpec { via: None, dev, onlink: false, kind: RouteKind::Unicast, scope: 0, protocol: 0 };
            self.route = Some((network, route));
        }
        self
    }
}

/// What was asked and answered.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Whether the peer is asked through the overlay network.
    pub overlay: bool,
    /// Why no questions were sent, where they never are.
    pub silenced: Option<String>,
    /// The length of long questions.
    pub mtu: u16,
    /// Small questions through the overlay network.
    pub small: Tally,
    /// Long ones.
    pub full: Tally,
    /// Questions beside it.
    pub beside: Tally,
    /// Small pings through the overlay network.
    pub ping: Tally,
    /// Long ones.
    pub full_ping: Tally,
    /// Pings beside it.
    pub beside_ping: Tally,
    /// By the peer's words, how many milliseconds ago it heard this node through the overlay network.
    pub hears_us: Option<u64>,
    /// The same beside it.
    pub hears_us_beside: Option<u64>,
    /// Who answered in its place.
    pub answered_by: Option<String>,
}

impl Heard {
    /// Whether anything came back through the overlay network.
    pub fn through(&self) -> bool {
        [self.small, self.full, self.ping, self.full_ping].iter().any(|tally| tally.answered > 0 || tally.refused > 0)
    }

    /// Whether anything was asked through it.
    pub fn asked_through(&self) -> bool {
        [self.small, self.full, self.ping, self.full_ping].iter().any(|tally| tally.asked > 0)
    }
}

/// What keeps packets on this node, as its doctor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Nothing.
    Clear,
    /// These findings.
    Broken(Vec<String>),
    /// It could not be looked at, for this reason.
    Unknown(String),
}

/// The checks that are about packets which this node forwards or takes in, for each family.
const CHECKS: [&str; 5] = ["rp-filter", "ufw", "firewalld", "forward-policy", "forward-reject"];

impl Rules {
    /// From the doctor's report.
    pub fn of(report: Option<&Report>, ipv6: bool) -> Self {
        let Some(report) = report else { return Rules::Unknown("the doctor has not looked yet".to_owned()) };
        let forwarding = if ipv6 { "ipv6-forwarding" } else { "ip-forward" };
        let is_one = |check: &str| check == forwarding || CHECKS.contains(&check);
        let broken: Vec<String> = report
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Broken && is_one(&finding.check) && is_about(&finding.about, ipv6))
            .map(|finding| finding.what.clone())
            .collect();
        if !broken.is_empty() {
            return Rules::Broken(broken);
        }
        match report.unknown.iter().find(|unknown| is_one(&unknown.check)) {
            Some(unknown) => Rules::Unknown(unknown.why.clone()),
            None => Rules::Clear,
        }
    }
}

/// Whether a firewall's finding is about this family: it names a command, a family, or a network.
fn is_about(about: &str, ipv6: bool) -> bool {
    let command = about.split(' ').next().unwrap_or_default();
    let net = about.rsplit(' ').next().and_then(|word| word.parse::<IpNet>().ok());
    match (command, net) {
        (_, Some(net)) => net.addr().is_ipv6() == ipv6,
        ("IPv4", _) => !ipv6,
        ("IPv6", _) => ipv6,
        _ if command.starts_with("ip6tables") => ipv6,
        _ if command.starts_with("iptables") => !ipv6,
        _ => true,
    }
}

/// The way to an address in a subnet of this node.
#[derive(Clone, Debug)]
pub struct Local {
    /// The address.
    pub pod: IpAddr,
    /// The subnet.
    pub subnet: IpNet,
    /// Where packets to it leave.
    pub fate: Result<Fate, String>,
    /// Pings of it, if they were sent.
    pub pinged: Option<Result<Tally, String>>,
    /// Its hardware address, looked up after them.
    pub neighbour: Result<Neighbour, String>,
}

/// An encapsulation in a sentence.
pub fn named(tunnel: Encapsulation) -> String {
    match tunnel.port() {
        Some(port) => format!("UDP port {port}"),
        None => format!("IP protocol {}", tunnel.protocol().unwrap_or_default()),
    }
}
