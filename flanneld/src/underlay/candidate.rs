//! A candidate interface, and its conversion to a chosen interface with addresses, MTU and published addresses.

use super::choice::{Chosen, Rule};
use super::facts::{HostFacts, Leased};
use super::request::Request;
use crate::error::joined;
use backends::Underlay;
use netstate::host::{Interface, Route, unusable_state};
use std::fmt::Display;
use std::net::IpAddr;
use types::{Addresses, Family, Problem};

/// Includes the addresses that the selector requires.
pub(super) struct Candidate<'a> {
    pub interface: &'a Interface,
    /// At most one of each family.
    fixed: Vec<(IpAddr, Rule)>,
    pub why: String,
    pub flag: Option<String>,
    pub by_default: bool,
    pub warnings: Vec<String>,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(interface: &'a Interface, why: impl Into<String>) -> Self {
        Self {
            interface,
            fixed: Vec::new(),
            why: why.into(),
            flag: None,
            by_default: false,
            warnings: Vec::new(),
        }
    }

    pub(super) fn named_by(self, flag: Option<String>) -> Self {
        Self { flag, ..self }
    }

    /// Sets the address of one family to `ip`, found by `rule`.
    pub(super) fn at(mut self, ip: IpAddr, rule: Rule) -> Self {
        self.fixed.retain(|(other, _)| other.is_ipv6() != ip.is_ipv6());
        self.fixed.push((ip, rule));
        self
    }

    /// Sets the source address that the kernel selects, if it selects one.
    pub(super) fn from(self, source: Option<IpAddr>) -> Self {
        match source {
            Some(source) => self.at(source, Rule::Best),
            None => self,
        }
    }
}

/// In a dual-stack network, the IPv4 and IPv6 default routes must use the same interface.
pub(super) fn default_route<'a>(
    request: &Request,
    facts: &'a HostFacts,
) -> Result<Candidate<'a>, Problem> {
    let families = request.families.families();
    let lists = families.map(|family| default_of(family, facts));
    let lists: Vec<Vec<&Interface>> = lists.collect::<Result<_, _>>()?;
    let mut firsts = lists.iter().filter_map(|list| list.first().copied());
    let interface = firsts.next().ok_or_else(report_no_family)?;
    let is_in = |list: &Vec<&Interface>| list.iter().any(|other| other.index == interface.index);
    match firsts.next() {
        Some(other) if !lists.iter().all(is_in) => Err(refuse_two_interfaces(
            "default route ",
            [interface, other],
            "; name the interface with --iface",
        )),
        _ => Ok(Candidate { by_default: true, ..Candidate::new(interface, "the default route's") }),
    }
}

/// IPv4 and IPv6 settings or routes lead to different interfaces. `route` and `remedy` may be empty.
pub(super) fn refuse_two_interfaces(
    route: &str,
    [v4, v6]: [&Interface; 2],
    remedy: &str,
) -> Problem {
    let text = format!(
        "v6 {route}interface {} must be the same with v4 {route}interface {}{remedy}",
        v6.name, v4.name
    );
    Problem::new("interfaces-differ", text)
}

fn report_no_family() -> Problem {
    Problem::new("network-without-family", "the network uses no address family")
}

/// The usable interfaces, preferred routes first.
fn default_of(family: Family, facts: &HostFacts) -> Result<Vec<&Interface>, Problem> {
    let routes: Vec<&Route> =
        facts.defaults.iter().filter(|route| Family::from(route.net) == family).collect();
    let mut unusable = Vec::new();
    let mut found = Vec::new();
    for route in &routes {
        let metric = route.metric;
        match facts.by_index(route.index) {
            _ if !route.carries() => {
                unusable.push(format!("the default route with metric {metric} rejects packets"));
            }
            None => unusable.push(format!(
                "found default route of metric {metric} but could not determine interface"
            )),
            Some(interface) if interface.loopback || facts.serves_pods(interface) => {
                let name = &interface.name;
                unusable.push(format!("the default route with metric {metric} leads to {name}"));
            }
            Some(interface) if !interface.up => {
                unusable.push(format!("{} is down", interface.name));
            }
            Some(interface) => found.push(interface),
        }
    }
    if found.is_empty() {
        Err(Problem::new(
            "default-route-missing",
            format!(
                "failed to get default {}interface: unable to find default route{}; name the interface with --iface, this host has {}",
                family.pick("", "v6 "),
                in_brackets(&unusable, ", "),
                host(facts)
            ),
        ))
    } else {
        Ok(found)
    }
}

/// Converts a candidate to a chosen interface with addresses, MTU and published addresses.
pub(super) fn finish(
    request: &Request,
    facts: &HostFacts,
    candidate: Candidate<'_>,
    named: bool,
) -> Result<Chosen, Problem> {
    let interface = candidate.interface;
    let name = &interface.name;
    if !interface.up {
        return Err(Problem::new(
            "interface-down",
            format!("interface {name} is down; bring it up with `ip link set {name} up`"),
        ));
    }
    if interface.mtu == 0 {
        let text = format!("failed to determine MTU for {name} interface");
        return Err(Problem::new("interface-mtu-unknown", text));
    }
    if facts.serves_pods(interface) {
        let text = format!("{name} belongs to flannel's pods and reaches no other node");
        return Err(Problem::new("interface-of-pods", text));
    }
    let own = |family: Family| {
        let mut fixed = candidate.fixed.iter();
        if let Some(fixed) = fixed.find(|(ip, _)| Family::from(*ip) == family) {
            return Ok(fixed.clone());
        }
        let eligible = facts.eligible(interface, family);
        let best = eligible.first().ok_or_else(|| {
            let all = interface.addresses.iter();
            let unfit = all.filter(|address| Family::from(address.net) == family);
            let states =
                unfit.map(|address| format!("{}: {}", address.ip(), unusable_state(address)));
            let states = match joined(states, ", ") {
                none if none.is_empty() => "it has none".to_owned(),
                states => states,
            };
            Problem::new(
                "interface-without-address",
                format!("failed to find {family} address for interface {name}: {states}"),
            )
        });
        best.map(|ip| (*ip, Rule::Best))
    };
    let rules = request.families.families().map(own);
    let rules: Vec<(IpAddr, Rule)> = rules.collect::<Result<_, _>>()?;
    let addresses = rules.iter().map(|(ip, _)| Addresses::from(*ip));
    let addresses = addresses.reduce(Addresses::or).ok_or_else(report_no_family)?;
    let given = request.given_public();
    let public = given.map_or(addresses, |given| given.or(addresses));
    let mut warnings = candidate.warnings;
    warnings.extend(among_pods(interface, addresses.ips().chain(public.ips()), facts)?);
    Ok(Chosen {
        underlay: Underlay {
            index: interface.index,
            name: name.clone(),
            mtu: facts.mtu(interface),
            addresses,
            public,
            local: facts.local(interface.index),
            links: facts.links(interface.index),
        },
        why: candidate.why,
        flag: candidate.flag,
        named: named || given.is_some(),
        by_default: candidate.by_default,
        given_public: given,
        leased: Leased { all: Vec::new(), ..facts.leased.clone() },
        warnings,
        rules,
    })
}

/// Warns about an address inside another node's subnet. An address inside this node's subnet is an error.
fn among_pods(
    interface: &Interface,
    addresses: impl Iterator<Item = IpAddr>,
    facts: &HostFacts,
) -> Result<Option<String>, Problem> {
    let mut warning = None;
    for ip in addresses {
        if let Some(net) = facts.own_subnet_around(ip) {
            let text = format!(
                "{ip} of {} is inside {net}, the subnet of this node's pods; other nodes cannot reach this node there",
                interface.name
            );
            return Err(Problem::new("interface-of-pods", text));
        }
        warning = warning.or(facts.leased_around(ip).map(|net| format!(
            "{ip} is inside the leased subnet {net}: nodes with older leases do not use this node's lease. Choose an address outside the leased subnets with --iface or --iface-cidr, or release the other lease"
        )));
    }
    Ok(warning)
}

/// The interfaces that an operator can choose, without pods' interfaces, which are numerous and change often.
pub(super) fn host(facts: &HostFacts) -> String {
    let shown = facts.interfaces.iter().filter(|interface| facts.is_shown(interface));
    let shown = shown.map(|interface| {
        let down = if interface.up { "" } else { ", down" };
        format!("{}:[{}{down}]", interface.name, interface.addresses_text())
    });
    match joined(shown, ", ") {
        none if none.is_empty() => "no interface but lo".to_owned(),
        interfaces => interfaces,
    }
}

/// As ` (a, b)`, or empty without items.
pub(super) fn in_brackets(items: &[impl Display], by: &str) -> String {
    if items.is_empty() { String::new() } else { format!(" ({})", joined(items, by)) }
}
