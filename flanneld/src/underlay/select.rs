//! Selects the underlay interface in the order of Go flannel, and with Go flannel's rules for each address family.

use super::candidate::{Candidate, default_route, finish, host};
use super::choice::{Chosen, Rule};
use super::facts::HostFacts;
use super::problem::{Apart, SelectError, Unfit};
use super::request::{Request, StoreAt};
use super::whose;
use ipnet::IpNet;
use netstate::host::Interface;
use options::{Pattern, Selector};
use std::net::IpAddr;
use types::Family;

/// Chooses the underlay interface that meets the requirements.
///
/// # Errors
/// Returns an error if no interface fits. The error lists the selectors and the reason why each selector failed.
pub fn select(request: &Request, facts: &HostFacts) -> Result<Chosen, SelectError> {
    if let Some(known) = request
        .known
        .as_ref()
        .filter(|_| request.selectors.is_empty() && request.given_public().is_none())
    {
        return whose::choose(known, request, facts).map_err(SelectError::Unnamed);
    }
    if request.selectors.is_empty() {
        return unnamed(request, facts)
            .and_then(|(candidate, named)| finish(request, facts, candidate, named))
            .map_err(SelectError::Unnamed);
    }
    let mut tried = Vec::new();
    for selector in &request.selectors {
        let named = !matches!(selector, Selector::DefaultRoute(_));
        let flag = (named && *selector != Selector::Auto).then(|| selector.to_string());
        let found = candidate(selector, request, facts).map(|candidate| candidate.named_by(flag));
        match found.and_then(|candidate| finish(request, facts, candidate, named)) {
            Ok(chosen) => return Ok(chosen),
            Err(why) => tried.push((selector.clone(), why)),
        }
    }
    Err(SelectError::Named(tried))
}

/// Returns the interface with the configured public addresses, otherwise the default route's interface. This selection
/// applies if no flag names an interface.
fn unnamed<'a>(request: &Request, facts: &'a HostFacts) -> Result<(Candidate<'a>, bool), Unfit> {
    let public = |family| request.given_public().and_then(|given| given.of(family));
    let (v4, v6) = (public(Family::V4), public(Family::V6));
    let owner =
        |ip: Option<IpAddr>| ip.and_then(|ip| facts.owner(ip).map(|interface| (interface, ip)));
    match (owner(v4), owner(v6)) {
        (Some((a, _)), Some((b, _))) if a.index != b.index => Err(Unfit::Apart {
            by: Apart::PublicAddresses,
            v4: a.name.clone(),
            v6: b.name.clone(),
        }),
        (Some((interface, ip)), other) => {
            let candidate = Candidate::new(
                interface,
                format!("the interface with the address of --public-ip={ip}"),
            )
            .at(ip, Rule::Exactly);
            Ok((
                other.into_iter().fold(candidate, |candidate, (_, ip)| {
                    candidate.at(ip, Rule::Exactly)
                }),
                true,
            ))
        }
        (None, Some((interface, ip))) => Ok((
            Candidate::new(
                interface,
                format!("the interface with the address of --public-ipv6={ip}"),
            )
            .at(ip, Rule::Exactly),
            true,
        )),
        (None, None) => {
            let mut candidate = default_route(request, facts)?;
            let given: Vec<String> = v4.into_iter().chain(v6).map(|ip| ip.to_string()).collect();
            if !given.is_empty() {
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
) -> Result<Candidate<'a>, Unfit> {
    match selector {
        Selector::DefaultRoute(_) => default_route(request, facts),
        Selector::Auto => auto(request, facts),
        Selector::Name(name) => {
            let interface = facts.by_name(name).ok_or_else(|| Unfit::NoSuchName {
                name: name.clone(),
                host: host(facts),
            })?;
            Ok(Candidate::new(interface, format!("named by {selector}")))
        }
        Selector::Address(ip) => {
            let interface = facts.owner(*ip).ok_or_else(|| Unfit::NoOwner {
                address: *ip,
                host: host(facts),
            })?;
            let mut candidate =
                Candidate::new(interface, format!("named by {selector}")).at(*ip, Rule::Exactly);
            if let Some(public) = request
                .given_public()
                .filter(|_| request.v4() && ip.is_ipv4())
                .and_then(|given| given.of(Family::V6))
                && let Some(other) = facts.owner(public)
            {
                if other.index != interface.index {
                    return Err(Unfit::Apart {
                        by: Apart::Addresses,
                        v4: interface.name.clone(),
                        v6: other.name.clone(),
                    });
                }
                candidate = candidate.at(public, Rule::Exactly);
            }
            Ok(candidate)
        }
        Selector::Cidr(net) => cidr(*net, selector, request, facts),
        Selector::Regex(pattern) => regex(pattern, selector, request, facts),
        Selector::CanReach(target) => {
            let (interface, source) = facts.towards(*target).map_err(|why| Unfit::OutOfReach {
                target: *target,
                why,
            })?;
            let candidate = Candidate::new(
                interface,
                format!(
                    "named by {selector} (the kernel reaches this address through the interface)"
                ),
            );
            Ok(match source {
                Some(source) => candidate.at(source, Rule::Best),
                None => candidate,
            })
        }
    }
}

/// Returns whether an interface has a usable address of each family that the network uses.
fn has_each(request: &Request, interface: &Interface) -> bool {
    Family::ALL
        .into_iter()
        .all(|family| !request.uses(family) || !interface.usable(family).is_empty())
}

/// Returns the first interface with a usable address inside `net`. Prefers interfaces that have a usable address of
/// each family that the network uses.
fn cidr<'a>(
    net: IpNet,
    selector: &Selector,
    request: &Request,
    facts: &'a HostFacts,
) -> Result<Candidate<'a>, Unfit> {
    let inside = |interface: &Interface| {
        interface
            .usable(Family::from(net))
            .into_iter()
            .find(|ip| net.contains(ip))
    };
    let up = facts.interfaces.iter().filter(|interface| interface.up);
    // An interface with both families takes precedence over one that only has the address.
    let fits = |interface: &&Interface| has_each(request, interface);
    let found = up
        .clone()
        .filter(fits)
        .chain(up)
        .find_map(|interface| inside(interface).map(|ip| (interface, ip)));
    let (interface, ip) = found.ok_or_else(|| Unfit::NoneInside {
        net,
        host: host(facts),
    })?;
    Ok(Candidate::new(
        interface,
        format!("named by {selector} (its address {ip} is inside)"),
    )
    .at(ip, Rule::Inside(net)))
}

/// Returns the first interface whose addresses match `pattern`, otherwise the first interface whose name matches.
/// Skips interfaces that lack a usable address of a family that the network uses.
fn regex<'a>(
    pattern: &Pattern,
    selector: &Selector,
    request: &Request,
    facts: &'a HostFacts,
) -> Result<Candidate<'a>, Unfit> {
    let fit: Vec<&Interface> = facts
        .interfaces
        .iter()
        .filter(|interface| interface.up && !interface.loopback)
        .filter(|interface| has_each(request, interface))
        .collect();
    let matching = |interface: &Interface, family| {
        interface
            .usable(family)
            .into_iter()
            .find(|ip| pattern.matches(&ip.to_string()))
    };
    for interface in &fit {
        let v4 = if request.v4() {
            matching(interface, Family::V4)
        } else {
            None
        };
        let v6 = if request.v6() {
            matching(interface, Family::V6)
        } else {
            None
        };
        if v4.is_some() == request.v4() && v6.is_some() == request.v6() {
            let texts: Vec<String> = v4.iter().chain(&v6).map(ToString::to_string).collect();
            let candidate = Candidate::new(
                interface,
                format!(
                    "named by {selector} (its address {} matches)",
                    texts.join(" and ")
                ),
            );
            return Ok(v4.into_iter().chain(v6).fold(candidate, |candidate, ip| {
                candidate.at(ip, Rule::Matching(pattern.clone()))
            }));
        }
    }
    match fit
        .into_iter()
        .find(|interface| pattern.matches(&interface.name))
    {
        Some(interface) => Ok(Candidate::new(
            interface,
            format!("named by {selector} (its name matches)"),
        )),
        None => Err(Unfit::NoMatch {
            pattern: pattern.clone(),
            host: host(facts),
        }),
    }
}

fn auto<'a>(request: &Request, facts: &'a HostFacts) -> Result<Candidate<'a>, Unfit> {
    match &request.store {
        StoreAt::Here => {
            let mut candidate = default_route(request, facts)?;
            candidate.why = format!(
                "{} (--iface=auto, and the store is on this host)",
                candidate.why
            );
            Ok(candidate)
        }
        StoreAt::Unknown(why) => Err(Unfit::StoreUnknown(why.clone())),
        StoreAt::There(addresses) => {
            let mut whys = Vec::new();
            for address in addresses {
                if address.is_loopback() {
                    let mut candidate = default_route(request, facts)?;
                    candidate.why = format!(
                        "{} (--iface=auto, and the store is on this host)",
                        candidate.why
                    );
                    return Ok(candidate);
                }
                match facts.towards(*address) {
                    Ok((interface, source)) => {
                        let why = if interface.owns(*address) {
                            format!(
                                "the interface with the store's own address {address} (--iface=auto)"
                            )
                        } else {
                            format!(
                                "the interface that reaches the store at {address} (--iface=auto)"
                            )
                        };
                        let candidate = Candidate::new(interface, why);
                        return Ok(match source {
                            Some(source) => candidate.at(source, Rule::Best),
                            None => candidate,
                        });
                    }
                    Err(why) => whys.push((*address, why)),
                }
            }
            Err(Unfit::StoreOutOfReach(whys))
        }
    }
}
