//! Selects the underlay interface in the order of Go flannel, and with Go flannel's rules for each address family.

use super::candidate::{Candidate, default_route, finish, host, refuse_two_interfaces};
use super::choice::{Chosen, Rule};
use super::facts::HostFacts;
use super::request::{Request, StoreAt};
use super::whose;
use crate::error::joined;
use ipnet::IpNet;
use netstate::host::Interface;
use options::{Pattern, Selector};
use std::net::IpAddr;
use types::{Addresses, Family, Problem};

/// The error lists the selectors and the reason why each failed.
pub fn select(request: &Request, facts: &HostFacts) -> Result<Chosen, Problem> {
    if let Some(clash) = facts.clash() {
        return Err(report_no_interface(Problem::new("podcidr-of-host", clash)));
    }
    if let Some(known) = request
        .known
        .as_ref()
        .filter(|_| request.selectors.is_empty() && request.given_public().is_none())
    {
        return whose::choose(known, request, facts).map_err(report_no_interface);
    }
    if request.selectors.is_empty() {
        return unnamed(request, facts)
            .and_then(|(candidate, named)| finish(request, facts, candidate, named))
            .map_err(report_no_interface);
    }
    let (mut texts, mut parts) = (Vec::new(), Vec::new());
    for selector in &request.selectors {
        let named = !matches!(selector, Selector::DefaultRoute(_));
        let flag = (named && *selector != Selector::Auto).then(|| selector.to_string());
        let found = candidate(selector, request, facts).map(|candidate| candidate.named_by(flag));
        match found.and_then(|candidate| finish(request, facts, candidate, named)) {
            Ok(chosen) => return Ok(chosen),
            Err(why) => {
                texts.push(format!("{selector}: {why}"));
                parts.push(why);
            }
        }
    }
    let text = format!(
        "Failed to find interface to use that matches the interfaces and/or regexes provided: {}",
        texts.join("; ")
    );
    Err(Problem { parts, ..Problem::new("no-named-interface", text) })
}

/// If no flag names an interface.
fn report_no_interface(why: Problem) -> Problem {
    let text = format!("Failed to find any valid interface to use: {why}");
    Problem { parts: vec![why], ..Problem::new("no-valid-interface", text) }
}

/// The interface with the configured public addresses, otherwise the default route's. This applies if no flag names
/// an interface.
fn unnamed<'a>(request: &Request, facts: &'a HostFacts) -> Result<(Candidate<'a>, bool), Problem> {
    let given = request.given_public();
    let given: Vec<IpAddr> = given.iter().flat_map(Addresses::ips).collect();
    let owned = given.iter().filter_map(|ip| Some((facts.owner(*ip)?, *ip)));
    let owned: Vec<(&Interface, IpAddr)> = owned.collect();
    match owned[..] {
        [(a, _), (b, _)] if a.index != b.index => Err(refuse_two_interfaces(
            "",
            [a, b],
            ": --public-ip and --public-ipv6 belong to these two interfaces",
        )),
        [(interface, ip), ..] => {
            let flag = Family::from(ip).pick("--public-ip", "--public-ipv6");
            let why = format!("the interface with the address of {flag}={ip}");
            let candidate = Candidate::new(interface, why);
            let with = |candidate: Candidate<'a>, (_, ip)| candidate.at(ip, Rule::Exactly);
            Ok((owned.into_iter().fold(candidate, with), true))
        }
        [] => {
            let mut candidate = default_route(request, facts)?;
            if !given.is_empty() {
                let given: Vec<String> = given.iter().map(ToString::to_string).collect();
                candidate.warnings.push(format!(
                    "flanneld publishes the public address {}, which is not an address of this host, to the other nodes. Packets leave through {}, which holds the default route; choose another interface with --iface",
                    given.join(" and "),
                    candidate.interface.name
                ));
            }
            Ok((candidate, false))
        }
    }
}

fn candidate<'a>(
    selector: &Selector,
    request: &Request,
    facts: &'a HostFacts,
) -> Result<Candidate<'a>, Problem> {
    match selector {
        Selector::DefaultRoute(_) => default_route(request, facts),
        Selector::Auto => auto(request, facts),
        Selector::Name(name) => {
            let interface = facts.by_name(name).ok_or_else(|| {
                let text = format!(
                    "error looking up interface {name}: no such interface; this host has {}",
                    host(facts)
                );
                Problem::new("interface-absent", text)
            })?;
            Ok(Candidate::new(interface, format!("named by {selector}")))
        }
        Selector::Address(ip) => {
            let interface = facts.owner(*ip).ok_or_else(|| {
                let (v6, kind) = Family::from(*ip).pick(("", "IP"), ("v6 ", "IPv6"));
                let text = format!(
                    "error looking up {v6}interface {ip}: no interface with given {kind} found; this host has {}",
                    host(facts)
                );
                Problem::new("interface-address-absent", text)
            })?;
            let mut candidate =
                Candidate::new(interface, format!("named by {selector}")).at(*ip, Rule::Exactly);
            if let Some(public) = request
                .given_public()
                .filter(|_| request.uses(Family::V4) && ip.is_ipv4())
                .and_then(|given| given.of(Family::V6))
                && let Some(other) = facts.owner(public)
            {
                if other.index != interface.index {
                    return Err(refuse_two_interfaces("", [interface, other], ""));
                }
                candidate = candidate.at(public, Rule::Exactly);
            }
            Ok(candidate)
        }
        Selector::Cidr(net) => cidr(*net, selector, request, facts),
        Selector::Regex(pattern) => regex(pattern, selector, request, facts),
        Selector::CanReach(target) => {
            let (interface, source) = facts.towards(*target).map_err(|why| {
                let text = format!(
                    "cannot choose an interface by --iface-can-reach: the lookup of the route to {target} failed: {why}"
                );
                let problem = Problem::new("interface-target-unreachable", text);
                Problem { parts: vec![why], ..problem }
            })?;
            let why = format!(
                "named by {selector} (the kernel reaches this address through the interface)"
            );
            Ok(Candidate::new(interface, why).from(source))
        }
    }
}

/// True if the interface has an eligible address of each family that the network uses.
fn has_each(request: &Request, facts: &HostFacts, interface: &Interface) -> bool {
    let mut families = request.families.families();
    families.all(|family| !facts.eligible(interface, family).is_empty())
}

/// The first interface with a usable address inside `net`. Prefers interfaces that have a usable address of each
/// family that the network uses.
fn cidr<'a>(
    net: IpNet,
    selector: &Selector,
    request: &Request,
    facts: &'a HostFacts,
) -> Result<Candidate<'a>, Problem> {
    let inside = |interface: &'a Interface| {
        let mut addresses = facts.eligible(interface, Family::from(net)).into_iter();
        Some((interface, addresses.find(|ip| net.contains(ip))?))
    };
    let up = facts.interfaces.iter().filter(|interface| interface.up);
    // An interface with both families takes precedence over one that only has the address, a link over loopback,
    // which may have virtual addresses, and any address over one in a leased subnet.
    let found = up.filter_map(inside).min_by_key(|(interface, ip)| {
        (
            facts.leased_around(*ip).is_some(),
            !has_each(request, facts, interface),
            interface.loopback,
        )
    });
    let (interface, ip) = found.ok_or_else(|| {
        let text = format!(
            "no interface that is up has a usable address inside {net}; this host has {}",
            host(facts)
        );
        Problem::new("interface-cidr-unmatched", text)
    })?;
    Ok(Candidate::new(interface, format!("named by {selector} (its address {ip} is inside)"))
        .at(ip, Rule::Inside(net)))
}

/// The first interface whose addresses match `pattern`, otherwise the first whose name matches. Skips interfaces that
/// lack a usable address of a family that the network uses.
fn regex<'a>(
    pattern: &Pattern,
    selector: &Selector,
    request: &Request,
    facts: &'a HostFacts,
) -> Result<Candidate<'a>, Problem> {
    let mut fit: Vec<&Interface> = facts
        .interfaces
        .iter()
        .filter(|interface| interface.up && !interface.loopback)
        .filter(|interface| has_each(request, facts, interface))
        .collect();
    let is_leased = |net: IpNet| facts.leased_around(net.addr()).is_some();
    fit.sort_by_key(|interface| interface.nets().any(is_leased));
    let matching = |interface: &Interface, family| {
        facts.eligible(interface, family).into_iter().find(|ip| pattern.matches(&ip.to_string()))
    };
    for interface in &fit {
        let found = request.families.families().map(|family| matching(interface, family));
        let Some(found) = found.collect::<Option<Vec<IpAddr>>>() else {
            continue;
        };
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        let candidate = Candidate::new(
            interface,
            format!("named by {selector} (its address {} matches)", texts.join(" and ")),
        );
        return Ok(found
            .into_iter()
            .fold(candidate, |candidate, ip| candidate.at(ip, Rule::Matching(pattern.clone()))));
    }
    match fit.into_iter().find(|interface| pattern.matches(&interface.name)) {
        Some(interface) => {
            Ok(Candidate::new(interface, format!("named by {selector} (its name matches)")))
        }
        None => Err(Problem::new(
            "interface-regex-unmatched",
            format!(
                "could not match pattern {pattern} to any of the available network interfaces ({})",
                host(facts)
            ),
        )),
    }
}

fn auto<'a>(request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Problem> {
    let addresses = match &request.store {
        StoreAt::Here => &[][..],
        StoreAt::Unknown(why) => {
            let text = format!("the store's address is not known: {why}");
            let problem = Problem::new("interface-store-unknown", text);
            return Err(Problem { parts: vec![why.clone()], ..problem });
        }
        StoreAt::There(addresses) => addresses,
    };
    let mut whys = Vec::new();
    for address in addresses.iter().take_while(|address| !address.is_loopback()) {
        match facts.towards(*address) {
            Ok((interface, source)) => {
                let leads = match interface.owns(*address) {
                    true => format!("with the store's own address {address}"),
                    false => format!("that reaches the store at {address}"),
                };
                let why = format!("the interface {leads} (--iface=auto)");
                return Ok(Candidate::new(interface, why).from(source));
            }
            Err(why) => whys.push((*address, why)),
        }
    }
    if whys.len() < addresses.len() || addresses.is_empty() {
        let mut candidate = default_route(request, facts)?;
        candidate.why.push_str(" (--iface=auto, and the store is on this host)");
        return Ok(candidate);
    }
    let texts = joined(whys.iter().map(|(address, why)| format!("{address}: {why}")), ", ");
    Err(Problem {
        parts: whys.into_iter().map(|(_, why)| why).collect(),
        ..Problem::new("interface-store-unreachable", format!("no route to the store ({texts})"))
    })
}
