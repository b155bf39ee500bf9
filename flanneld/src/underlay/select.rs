//! The selection: Go flannel's order and rules, family by family.

use super::choice::{Chosen, Rule, SelectError};
use super::facts::{DefaultRoute, HostFacts, Interface};
use super::request::{KnownAddresses, Request, StoreAt};
use backends::Underlay;
use ipnet::IpNet;
use options::{Pattern, Selector};
use std::collections::BTreeMap;
use std::net::IpAddr;
use subnet_lease::Dual;

/// Why a selector yields no interface.
struct Failure {
    why: String,
    may_come: bool,
    /// The addresses that other nodes have.
    shared: String,
}

fn absent(why: String) -> Failure {
    Failure { why, may_come: true, shared: String::new() }
}

fn wrong(why: String) -> Failure {
    Failure { why, may_come: false, shared: String::new() }
}

/// A candidate interface, with its addresses if the selector fixes them.
struct Candidate<'a> {
    interface: &'a Interface,
    v4: Option<(IpAddr, Rule)>,
    v6: Option<(IpAddr, Rule)>,
    why: String,
    by_default: bool,
    warnings: Vec<String>,
}

impl<'a> Candidate<'a> {
    fn new(interface: &'a Interface, why: impl Into<String>) -> Self {
        Self { interface, v4: None, v6: None, why: why.into(), by_default: false, warnings: Vec::new() }
    }

    /// Fixes the address of a family.
    fn at(mut self, ip: IpAddr, rule: Rule) -> Self {
        *(if ip.is_ipv6() { &mut self.v6 } else { &mut self.v4 }) = Some((ip, rule));
        self
    }
}

/// Chooses the interface.
///
/// # Errors
/// Lists the selectors that were tried and why they failed.
pub fn select(request: &Request, facts: &HostFacts) -> Result<Chosen, SelectError> {
    let told = request.public_ip.is_some() && request.v4() || request.public_ipv6.is_some() && request.v6();
    if let Some(known) = request.known.as_ref().filter(|_| request.selectors.is_empty() && !told) {
        return by_known_addresses(known, request, facts).map_err(|failure| SelectError {
            text: format!("Failed to find any valid interface to use: {}", failure.why),
            may_come: failure.may_come,
            shared: failure.shared,
        });
    }
    if request.selectors.is_empty() {
        return unnamed(request, facts).and_then(|(candidate, named)| finish(request, facts, candidate, named)).map_err(|failure| SelectError {
            text: format!("Failed to find any valid interface to use: {}", failure.why),
            may_come: failure.may_come,
            shared: failure.shared,
        });
    }
    let mut tried = Vec::new();
    let mut may_come = false;
    for selector in &request.selectors {
        let named = !matches!(selector, Selector::DefaultRoute(_));
        match candidate(selector, request, facts).and_then(|candidate| finish(request, facts, candidate, named)) {
            Ok(chosen) => return Ok(chosen),
            Err(failure) => {
                may_come |= failure.may_come;
                tried.push(format!("{selector}: {}", failure.why));
            }
        }
    }
    Err(SelectError {
        text: format!("Failed to find interface to use that matches the interfaces and/or regexes provided: {}", tried.join("; ")),
        may_come,
        shared: String::new(),
    })
}

/// The interface if none was named: the one with the public addresses, else that of the default route.
fn unnamed<'a>(request: &Request, facts: &'a HostFacts) -> Result<(Candidate<'a>, bool), Failure> {
    let v4 = request.public_ip.filter(|_| request.v4()).map(IpAddr::V4);
    let v6 = request.public_ipv6.filter(|_| request.v6()).map(IpAddr::V6);
    let owner = |ip: Option<IpAddr>| ip.and_then(|ip| facts.owner(ip).map(|interface| (interface, ip)));
    match (owner(v4), owner(v6)) {
        (Some((a, _)), Some((b, _))) if a.index != b.index => Err(wrong(format!(
            "v6 interface {} must be the same with v4 interface {}: --public-ip and --public-ipv6 are addresses of both",
            b.name, a.name
        ))),
        (Some((interface, ip)), other) => {
            let candidate = Candidate::new(interface, format!("the one with the address of --public-ip={ip}")).at(ip, Rule::Exactly);
            Ok((other.into_iter().fold(candidate, |candidate, (_, ip)| candidate.at(ip, Rule::Exactly)), true))
        }
        (None, Some((interface, ip))) => {
            Ok((Candidate::new(interface, format!("the one with the address of --public-ipv6={ip}")).at(ip, Rule::Exactly), true))
        }
        (None, None) => {
            let mut candidate = default_route(request, facts)?;
            let given: Vec<String> = v4.into_iter().chain(v6).map(|ip| ip.to_string()).collect();
            if !given.is_empty() {
                candidate.warnings.push(format!(
                    "the public address {} is not an address of this host: it is published to the other nodes, and packets leave through {}, which holds the default route; choose another interface with --iface",
                    given.join(" and "),
                    candidate.interface.name
                ));
            }
            Ok((candidate, false))
        }
    }
}

/// The interface if none was named and the store knows the nodes: one with an address that no other node has.
fn by_known_addresses(known: &KnownAddresses, request: &Request, facts: &HostFacts) -> Result<Chosen, Failure> {
    let wanted = |ip: &IpAddr| if ip.is_ipv6() { request.v6() } else { request.v4() };
    let owned = known.candidates.iter().filter(|(ip, _)| wanted(ip)).filter_map(|(ip, whose)| Some((facts.owner(*ip)?, *ip, *whose)));
    let owned: Vec<_> = owned.filter(|(interface, ..)| !interface.loopback).collect();
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for (interface, ip, whose) in &owned {
        let candidate = Candidate::new(interface, format!("it has {ip}, {whose}")).at(*ip, Rule::Best);
        let other = owned.iter().find(|(other, second, _)| other.index == interface.index && second.is_ipv6() != ip.is_ipv6());
        candidates.push(other.into_iter().fold(candidate, |candidate, (_, second, _)| candidate.at(*second, Rule::Best)));
    }
    let mut whys = Vec::new();
    // Where the Node has an address here, the default route's interface is another one, or the same.
    if owned.is_empty() {
        match default_route(request, facts) {
            Ok(candidate) => candidates.push(candidate),
            Err(failure) => whys.push(failure.why),
        }
    }
    for server in &known.servers {
        match facts.towards(*server) {
            Ok((interface, source)) if !interface.loopback => {
                let candidate = Candidate::new(interface, format!("the one that reaches the API server at {server}"));
                candidates.push(source.filter(wanted).into_iter().fold(candidate, |candidate, source| candidate.at(source, Rule::Best)));
            }
            Ok(_) => {}
            Err(why) => whys.push(format!("no route to the API server at {server}: {why}")),
        }
    }
    let mut shared: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for candidate in candidates {
        match finish(request, facts, candidate, false) {
            Err(failure) => whys.push(failure.why),
            Ok(chosen) => {
                let addresses = chosen.underlay.addresses;
                let both = [addresses.v4().copied().map(IpAddr::V4), addresses.v6().copied().map(IpAddr::V6)];
                let taken: Vec<_> = both.into_iter().flatten().filter_map(|ip| Some((ip, known.taken.get(&ip)?.as_str()))).collect();
                if taken.is_empty() {
                    return Ok(chosen);
                }
                shared.extend(taken);
            }
        }
    }
    let shared: Vec<String> = shared.iter().map(|(ip, node)| format!("{ip} (Node {node})")).collect();
    if shared.is_empty() {
        return Err(absent(whys.join("; ")));
    }
    let shared = shared.join(", ");
    let why = format!(
        "other Nodes have the addresses of this host, too: {shared}. This happens where every machine has the same address on its NAT interface \
         (Vagrant's 10.0.2.15), and where a Node of a machine that was renamed is still there. Name the interface that really connects the nodes: \
         --iface or --iface-cidr in the arguments of the DaemonSet, or the annotation node-public-ip of this Node, or kubelet's --node-ip; or delete \
         the Node that is no more; this host has {}{}",
        names(facts),
        if whys.is_empty() { String::new() } else { format!(" ({})", whys.join("; ")) }
    );
    Err(Failure { shared, ..absent(why) })
}

fn candidate<'a>(selector: &Selector, request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Failure> {
    match selector {
        Selector::DefaultRoute(_) => default_route(request, facts),
        Selector::Auto => auto(request, facts),
        Selector::Name(name) => {
            let interface = facts
                .by_name(name)
                .ok_or_else(|| absent(format!("error looking up interface {name}: no such interface; this host has {}", names(facts))))?;
            Ok(Candidate::new(interface, format!("named by {selector}")))
        }
        Selector::Address(ip) => {
            let v = if ip.is_ipv6() { "v6 " } else { "" };
            let family = if ip.is_ipv6() { "IPv6" } else { "IP" };
            let interface = facts.owner(*ip).ok_or_else(|| {
                absent(format!("error looking up {v}interface {ip}: no interface with given {family} found; this host has {}", names(facts)))
            })?;
            let mut candidate = Candidate::new(interface, format!("named by {selector}")).at(*ip, Rule::Exactly);
            if let Some(public) = request.public_ipv6.filter(|_| request.v4() && request.v6() && ip.is_ipv4()).map(IpAddr::V6)
                && let Some(other) = facts.owner(public)
            {
                if other.index != interface.index {
                    return Err(wrong(format!("v6 interface {} must be the same with v4 interface {}", other.name, interface.name)));
                }
                candidate = candidate.at(public, Rule::Exactly);
            }
            Ok(candidate)
        }
        Selector::Cidr(net) => cidr(*net, selector, request, facts),
        Selector::Regex(pattern) => regex(pattern, selector, request, facts),
        Selector::CanReach(target) => {
            let (interface, source) = facts
                .towards(*target)
                .map_err(|why| absent(format!("failed to get ifcanreach based interface: couldn't lookup route to {target}: {why}")))?;
            let candidate = Candidate::new(interface, format!("named by {selector} (the kernel reaches it through this one)"));
            Ok(match source {
                Some(source) => candidate.at(source, Rule::Best),
                None => candidate,
            })
        }
    }
}

/// The first interface with a usable address inside the network; for the other family, its best address.
fn cidr<'a>(net: IpNet, selector: &Selector, request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Failure> {
    let ipv6 = net.max_prefix_len() == 128;
    let inside = |interface: &Interface| interface.usable(ipv6).into_iter().find(|ip| net.contains(ip));
    let up = facts.interfaces.iter().filter(|interface| interface.up);
    // An interface with both families takes precedence over one that only has the address.
    let fits =
        |interface: &&Interface| (!request.v4() || !interface.usable(false).is_empty()) && (!request.v6() || !interface.usable(true).is_empty());
    let found = up.clone().filter(fits).chain(up).find_map(|interface| inside(interface).map(|ip| (interface, ip)));
    let (interface, ip) =
        found.ok_or_else(|| absent(format!("no interface that is up has a usable address inside {net}; this host has {}", names(facts))))?;
    Ok(Candidate::new(interface, format!("named by {selector} (its address {ip} is inside)")).at(ip, Rule::Inside(net)))
}

/// Matches addresses of all interfaces first, then names. Skips interfaces that lack a family.
fn regex<'a>(pattern: &Pattern, selector: &Selector, request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Failure> {
    let fit: Vec<&Interface> = facts
        .interfaces
        .iter()
        .filter(|interface| interface.up && !interface.loopback)
        .filter(|interface| (!request.v4() || !interface.usable(false).is_empty()) && (!request.v6() || !interface.usable(true).is_empty()))
        .collect();
    let matching = |interface: &Interface, ipv6: bool| interface.usable(ipv6).into_iter().find(|ip| pattern.matches(&ip.to_string()));
    for interface in &fit {
        let v4 = if request.v4() { matching(interface, false) } else { None };
        let v6 = if request.v6() { matching(interface, true) } else { None };
        if v4.is_some() == request.v4() && v6.is_some() == request.v6() {
            let texts: Vec<String> = v4.iter().chain(&v6).map(ToString::to_string).collect();
            let candidate = Candidate::new(interface, format!("named by {selector} (its address {} matches)", texts.join(" and ")));
            return Ok(v4.into_iter().chain(v6).fold(candidate, |candidate, ip| candidate.at(ip, Rule::Matching(pattern.clone()))));
        }
    }
    match fit.into_iter().find(|interface| pattern.matches(&interface.name)) {
        Some(interface) => Ok(Candidate::new(interface, format!("named by {selector} (its name matches)"))),
        None => Err(absent(format!("could not match pattern {pattern} to any of the available network interfaces ({})", names(facts)))),
    }
}

fn auto<'a>(request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Failure> {
    match &request.store {
        StoreAt::Here => {
            let mut candidate = default_route(request, facts)?;
            candidate.why = format!("{} (--iface=auto, and the store is on this host)", candidate.why);
            Ok(candidate)
        }
        StoreAt::Unknown(why) => Err(absent(format!("the store's address is not known: {why}"))),
        StoreAt::There(addresses) => {
            let mut whys = Vec::new();
            for address in addresses {
                if address.is_loopback() {
                    let mut candidate = default_route(request, facts)?;
                    candidate.why = format!("{} (--iface=auto, and the store is on this host)", candidate.why);
                    return Ok(candidate);
                }
                match facts.towards(*address) {
                    Ok((interface, source)) => {
                        let why = if interface.owns(*address) {
                            format!("the one with the store's own address {address} (--iface=auto)")
                        } else {
                            format!("the one that reaches the store at {address} (--iface=auto)")
                        };
                        let candidate = Candidate::new(interface, why);
                        return Ok(match source {
                            Some(source) => candidate.at(source, Rule::Best),
                            None => candidate,
                        });
                    }
                    Err(why) => whys.push(format!("{address}: {why}")),
                }
            }
            Err(absent(format!("no route to the store ({})", whys.join(", "))))
        }
    }
}

/// The interface of the default route; with both families, that of both default routes.
fn default_route<'a>(request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Failure> {
    let v4 = if request.v4() { Some(default_of(false, facts)?) } else { None };
    let v6 = if request.v6() { Some(default_of(true, facts)?) } else { None };
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
fn default_of(ipv6: bool, facts: &HostFacts) -> Result<Vec<&Interface>, Failure> {
    let v = if ipv6 { "v6 " } else { "" };
    let routes: Vec<&DefaultRoute> = facts.defaults.iter().filter(|route| route.ipv6 == ipv6).collect();
    let mut skipped = Vec::new();
    let mut found = Vec::new();
    for route in &routes {
        let interface = route.index.and_then(|index| facts.by_index(index));
        match interface {
            _ if !route.carries => skipped.push(format!("the one with metric {} rejects packets", route.metric)),
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
fn finish(request: &Request, facts: &HostFacts, candidate: Candidate<'_>, named: bool) -> Result<Chosen, Failure> {
    let interface = candidate.interface;
    if !interface.up {
        return Err(absent(format!("interface {0} is down; bring it up with `ip link set {0} up`", interface.name)));
    }
    if interface.mtu == 0 {
        return Err(wrong(format!("failed to determine MTU for {} interface", interface.name)));
    }
    let own = |ipv6: bool, fixed: Option<(IpAddr, Rule)>| match fixed {
        Some(fixed) => Ok(fixed),
        None => match interface.usable(ipv6).first() {
            Some(ip) => Ok((*ip, Rule::Best)),
            None => Err(absent(no_address(interface, ipv6))),
        },
    };
    let v4 = if request.v4() { Some(own(false, candidate.v4)?) } else { None };
    let v6 = if request.v6() { Some(own(true, candidate.v6)?) } else { None };
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
        named: named || request.public_ip.is_some() && request.v4() || request.public_ipv6.is_some() && request.v6(),
        by_default: candidate.by_default,
        told: (request.public_ip, request.public_ipv6),
        warnings: candidate.warnings,
        rule_v4: v4.map_or(Rule::Best, |(_, rule)| rule),
        rule_v6: v6.map_or(Rule::Best, |(_, rule)| rule),
    })
}

/// Why an interface has no usable address of a family.
fn no_address(interface: &Interface, ipv6: bool) -> String {
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    let of_family: Vec<_> = interface.addresses.iter().filter(|address| address.ip().is_ipv6() == ipv6).collect();
    let states: Vec<String> = of_family.iter().map(|address| format!("{}: {}", address.ip(), address.state())).collect();
    let detail = if states.is_empty() { "it has none".to_owned() } else { states.join(", ") };
    format!("failed to find {family} address for interface {}: {detail}", interface.name)
}

/// All interfaces with their addresses, for error messages.
fn names(facts: &HostFacts) -> String {
    let list: Vec<String> = facts
        .interfaces
        .iter()
        .filter(|interface| !interface.loopback)
        .map(|interface| {
            let down = if interface.up { "" } else { ", down" };
            format!("{}:[{}{down}]", interface.name, interface.addresses_text())
        })
        .collect();
    if list.is_empty() { "no interface but lo".to_owned() } else { list.join(", ") }
}
