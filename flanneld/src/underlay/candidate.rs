//! A candidate interface, and its conversion to a chosen interface with addresses, MTU and published addresses.

use super::choice::{Chosen, Rule};
use super::error::InterfaceError;
use super::facts::{HostFacts, Leased};
use super::request::Request;
use crate::error::joined;
use backends::Underlay;
use netstate::host::{Address, Interface, Route};
use std::net::IpAddr;
use types::{Addresses, Family};

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
) -> Result<Candidate<'a>, InterfaceError> {
    let families = request.families.families();
    let lists = families.map(|family| default_of(family, facts));
    let lists: Vec<Vec<&Interface>> = lists.collect::<Result<_, _>>()?;
    let mut firsts = lists.iter().filter_map(|list| list.first().copied());
    let interface = firsts.next().ok_or(InterfaceError::NoFamily)?;
    let is_in = |list: &Vec<&Interface>| list.iter().any(|other| other.index == interface.index);
    match firsts.next() {
        Some(other) if !lists.iter().all(is_in) => Err(InterfaceError::Apart {
            route: "default route ",
            remedy: "; name the interface with --iface",
            v4: interface.name.clone(),
            v6: other.name.clone(),
        }),
        _ => Ok(Candidate { by_default: true, ..Candidate::new(interface, "the default route's") }),
    }
}

/// The usable interfaces, preferred routes first.
fn default_of(family: Family, facts: &HostFacts) -> Result<Vec<&Interface>, InterfaceError> {
    let routes: Vec<&Route> =
        facts.defaults.iter().filter(|route| route.family() == family).collect();
    let mut unusable = Vec::new();
    let mut found = Vec::new();
    for route in &routes {
        let interface = route.index.and_then(|index| facts.by_index(index));
        let metric = route.metric;
        match interface {
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
        Err(InterfaceError::NoDefault { family, unusable, host: host(facts) })
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
) -> Result<Chosen, InterfaceError> {
    let interface = candidate.interface;
    if !interface.up {
        return Err(InterfaceError::Down { interface: interface.name.clone() });
    }
    if interface.mtu == 0 {
        return Err(InterfaceError::NoMtu { interface: interface.name.clone() });
    }
    if facts.serves_pods(interface) {
        return Err(InterfaceError::Inward(format!(
            "{} belongs to flannel's pods and reaches no other node",
            interface.name
        )));
    }
    let own = |family: Family| {
        let mut fixed = candidate.fixed.iter();
        if let Some(fixed) = fixed.find(|(ip, _)| Family::from(*ip) == family) {
            return Ok(fixed.clone());
        }
        let eligible = facts.eligible(interface, family);
        let best = eligible.first().ok_or_else(|| InterfaceError::NoAddress {
            family,
            interface: interface.name.clone(),
            states: joined(
                interface
                    .addresses
                    .iter()
                    .filter(|address| Family::from(address.net) == family)
                    .map(|address| format!("{}: {}", address.ip(), address.state())),
                ", ",
            ),
        });
        best.map(|ip| (*ip, Rule::Best))
    };
    let rules = request.families.families().map(own);
    let rules: Vec<(IpAddr, Rule)> = rules.collect::<Result<_, _>>()?;
    let addresses = rules.iter().map(|(ip, _)| Addresses::from(*ip));
    let addresses = addresses.reduce(Addresses::or).ok_or(InterfaceError::NoFamily)?;
    let given = request.given_public();
    let public = given.map_or(addresses, |given| given.or(addresses));
    let mut warnings = candidate.warnings;
    warnings.extend(among_pods(interface, addresses.ips().chain(public.ips()), facts)?);
    Ok(Chosen {
        underlay: Underlay {
            index: interface.index,
            name: interface.name.clone(),
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
) -> Result<Option<String>, InterfaceError> {
    let mut warning = None;
    for ip in addresses {
        if let Some(net) = facts.own_subnet_around(ip) {
            return Err(InterfaceError::Inward(format!(
                "{ip} of {} is inside {net}, the subnet of this node's pods; other nodes cannot reach this node there",
                interface.name
            )));
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
        let usable = interface.addresses.iter().filter(|address| address.usable());
        let addresses = match joined(usable.map(Address::ip), ", ") {
            none if none.is_empty() => "no usable address".to_owned(),
            addresses => addresses,
        };
        let down = if interface.up { "" } else { ", down" };
        format!("{}:[{addresses}{down}]", interface.name)
    });
    match joined(shown, ", ") {
        none if none.is_empty() => "no interface but lo".to_owned(),
        interfaces => interfaces,
    }
}
