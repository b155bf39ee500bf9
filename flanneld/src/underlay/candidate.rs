//! A candidate interface, and what makes a choice of it: addresses, MTU, what is published.

use super::choice::{Chosen, Rule};
use super::facts::HostFacts;
use super::request::Request;
use backends::Underlay;
use netstate::host::{Interface, Route};
use std::net::IpAddr;
use subnet_lease::Dual;
use types::Family;

/// Why a selector yields no interface.
pub(super) struct Failure {
    pub why: String,
    pub may_come: bool,
    /// The addresses that other nodes have.
    pub shared: String,
}

pub(super) fn absent(why: String) -> Failure {
    Failure { why, may_come: true, shared: String::new() }
}

pub(super) fn wrong(why: String) -> Failure {
    Failure { why, may_come: false, shared: String::new() }
}

/// A candidate interface, with its addresses if the selector fixes them.
pub(super) struct Candidate<'a> {
    pub interface: &'a Interface,
    v4: Option<(IpAddr, Rule)>,
    v6: Option<(IpAddr, Rule)>,
    pub why: String,
    pub flag: Option<String>,
    pub by_default: bool,
    pub warnings: Vec<String>,
}

impl<'a> Candidate<'a> {
    pub fn new(interface: &'a Interface, why: impl Into<String>) -> Self {
        Self { interface, v4: None, v6: None, why: why.into(), flag: None, by_default: false, warnings: Vec::new() }
    }

    /// With the flag that named it, if one did.
    pub fn named_by(self, flag: Option<String>) -> Self {
        Self { flag, ..self }
    }

    /// Fixes the address of a family.
    pub fn at(mut self, ip: IpAddr, rule: Rule) -> Self {
        *(if ip.is_ipv6() { &mut self.v6 } else { &mut self.v4 }) = Some((ip, rule));
        self
    }
}

/// The interface of the default route; with both families, that of both default routes.
pub(super) fn default_route<'a>(request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Failure> {
    let v4 = if request.v4() { Some(default_of(Family::V4, facts)?) } else { None };
    let v6 = if request.v6() { Some(default_of(Family::V6, facts)?) } else { None };
    let first = |found: &Option<Vec<&'a Interface>>| found.as_ref().and_then(|list| list.first().copied());
    let interface = match (first(&v4), first(&v6)) {
        (Some(a), Some(b)) => match v6.iter().flatten().find(|interface| interface.index == a.index) {
            Some(_) => a,
            None => {
                return Err(wrong(format!(
                    "v6 default route interface {} must be the same with v4 default route interface {}; name the interface with --iface",
                    b.name, a.name
                )));
            }
        },
        (Some(a), None) | (None, Some(a)) => a,
        (None, None) => return Err(absent("unable to find default route".to_owned())),
    };
    Ok(Candidate { by_default: true, ..Candidate::new(interface, "the default route's") })
}

/// Interfaces of a family's default routes, in order of preference.
fn default_of(family: Family, facts: &HostFacts) -> Result<Vec<&Interface>, Failure> {
    let v = family.pick("", "v6 ");
    let routes: Vec<&Route> = facts.defaults.iter().filter(|route| route.family() == family).collect();
    let mut skipped = Vec::new();
    let mut found = Vec::new();
    for route in &routes {
        let interface = route.index.and_then(|index| facts.by_index(index));
        match interface {
            _ if !route.carries() => skipped.push(format!("the one with metric {} rejects packets", route.metric)),
            None => skipped.push(format!("found default route of metric {} but could not determine interface", route.metric)),
            Some(interface) if interface.loopback => skipped.push(format!("the one with metric {} leads to {}", route.metric, interface.name)),
            Some(interface) if !interface.up => skipped.push(format!("{} is down", interface.name)),
            Some(interface) => found.push(interface),
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let detail = if skipped.is_empty() { String::new() } else { format!(" ({})", skipped.join(", ")) };
    Err(absent(format!(
        "failed to get default {v}interface: unable to find default route{detail}; name the interface with --iface, this host has {}",
        names(facts)
    )))
}

/// Completes the addresses, the MTU and the published addresses.
pub(super) fn finish(request: &Request, facts: &HostFacts, candidate: Candidate<'_>, named: bool) -> Result<Chosen, Failure> {
    let interface = candidate.interface;
    if !interface.up {
        return Err(absent(format!("interface {0} is down; bring it up with `ip link set {0} up`", interface.name)));
    }
    if interface.mtu == 0 {
        return Err(wrong(format!("failed to determine MTU for {} interface", interface.name)));
    }
    let own = |family: Family, fixed: Option<(IpAddr, Rule)>| match fixed {
        Some(fixed) => Ok(fixed),
        None => match interface.usable(family).first() {
            Some(ip) => Ok((*ip, Rule::Best)),
            None => Err(absent(no_address(interface, family))),
        },
    };
    let v4 = if request.v4() { Some(own(Family::V4, candidate.v4)?) } else { None };
    let v6 = if request.v6() { Some(own(Family::V6, candidate.v6)?) } else { None };
    let ip4 = v4.as_ref().and_then(|(ip, _)| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
    let ip6 = v6.as_ref().and_then(|(ip, _)| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None });
    let addresses = Dual::from_options(ip4, ip6).ok_or_else(|| wrong("the network uses no address family".to_owned()))?;
    let public = addresses.map(|ip| request.public_ip.unwrap_or(ip), |ip| request.public_ipv6.unwrap_or(ip));
    Ok(Chosen {
        underlay: Underlay {
            index: interface.index,
            name: interface.name.clone(),
            mtu: interface.mtu,
            addresses,
            public,
            local: facts.local(interface.index),
            links: facts.links(interface.index),
        },
        why: candidate.why,
        flag: candidate.flag,
        named: named || request.public_ip.is_some() && request.v4() || request.public_ipv6.is_some() && request.v6(),
        by_default: candidate.by_default,
        told: Dual::from_options(request.public_ip, request.public_ipv6),
        warnings: candidate.warnings,
        rule_v4: v4.map_or(Rule::Best, |(_, rule)| rule),
        rule_v6: v6.map_or(Rule::Best, |(_, rule)| rule),
    })
}

/// Why an interface has no usable address of a family.
fn no_address(interface: &Interface, family: Family) -> String {
    let of_family: Vec<_> = interface.addresses.iter().filter(|address| Family::from(address.net) == family).collect();
    let states: Vec<String> = of_family.iter().map(|address| format!("{}: {}", address.ip(), address.state())).collect();
    let detail = if states.is_empty() { "it has none".to_owned() } else { states.join(", ") };
    format!("failed to find {family} address for interface {}: {detail}", interface.name)
}

/// The interfaces with their addresses, for error messages; not the many that belong to pods, which come and go.
pub(super) fn names(facts: &HostFacts) -> String {
    let list: Vec<String> = facts
        .interfaces
        .iter()
        .filter(|interface| facts.is_shown(interface))
        .map(|interface| {
            let down = if interface.up { "" } else { ", down" };
            format!("{}:[{}{down}]", interface.name, interface.addresses_text())
        })
        .collect();
    if list.is_empty() { "no interface but lo".to_owned() } else { list.join(", ") }
}
