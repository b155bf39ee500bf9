//! A candidate interface, and the conversion of the candidate to a chosen interface with addresses, MTU and published
//! addresses.

use super::choice::{Chosen, Rule};
use super::facts::HostFacts;
use super::problem::{Apart, Choosable, Host, Unfit, Useless};
use super::request::Request;
use backends::Underlay;
use netstate::host::{Address, Interface, Route};
use std::net::IpAddr;
use types::Dual;
use types::Family;

/// A candidate interface, with the addresses that its selector requires.
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
    pub(super) fn new(interface: &'a Interface, why: impl Into<String>) -> Self {
        Self {
            interface,
            v4: None,
            v6: None,
            why: why.into(),
            flag: None,
            by_default: false,
            warnings: Vec::new(),
        }
    }

    /// Records the flag that named the interface, if any.
    pub(super) fn named_by(self, flag: Option<String>) -> Self {
        Self { flag, ..self }
    }

    /// Sets the candidate's address of one family to `ip`, found by `rule`.
    pub(super) fn at(mut self, ip: IpAddr, rule: Rule) -> Self {
        *(if ip.is_ipv6() {
            &mut self.v6
        } else {
            &mut self.v4
        }) = Some((ip, rule));
        self
    }
}

/// Returns the interface of the default route. In a dual-stack network, the IPv4 and IPv6 default routes must use the
/// same interface.
pub(super) fn default_route<'a>(
    request: &Request,
    facts: &'a HostFacts,
) -> Result<Candidate<'a>, Unfit> {
    let v4 = if request.v4() {
        Some(default_of(Family::V4, facts)?)
    } else {
        None
    };
    let v6 = if request.v6() {
        Some(default_of(Family::V6, facts)?)
    } else {
        None
    };
    let first =
        |found: &Option<Vec<&'a Interface>>| found.as_ref().and_then(|list| list.first().copied());
    let interface = match (first(&v4), first(&v6)) {
        (Some(a), Some(b)) => match v6
            .iter()
            .flatten()
            .find(|interface| interface.index == a.index)
        {
            Some(_) => a,
            None => {
                return Err(Unfit::Apart {
                    by: Apart::DefaultRoutes,
                    v4: a.name.clone(),
                    v6: b.name.clone(),
                });
            }
        },
        (Some(a), None) | (None, Some(a)) => a,
        (None, None) => return Err(Unfit::NoFamily),
    };
    Ok(Candidate {
        by_default: true,
        ..Candidate::new(interface, "the default route's")
    })
}

/// Returns the usable interfaces of an address family's default routes, preferred routes first.
fn default_of(family: Family, facts: &HostFacts) -> Result<Vec<&Interface>, Unfit> {
    let routes: Vec<&Route> = facts
        .defaults
        .iter()
        .filter(|route| route.family() == family)
        .collect();
    let mut passed_over = Vec::new();
    let mut found = Vec::new();
    for route in &routes {
        let interface = route.index.and_then(|index| facts.by_index(index));
        match interface {
            _ if !route.carries() => passed_over.push(Useless::Rejects {
                metric: route.metric,
            }),
            None => passed_over.push(Useless::Nowhere {
                metric: route.metric,
            }),
            Some(interface) if interface.loopback => {
                passed_over.push(Useless::Loopback {
                    metric: route.metric,
                    interface: interface.name.clone(),
                });
            }
            Some(interface) if !interface.up => passed_over.push(Useless::Down {
                interface: interface.name.clone(),
            }),
            Some(interface) => found.push(interface),
        }
    }
    if found.is_empty() {
        Err(Unfit::NoDefault {
            family,
            passed_over,
            host: host(facts),
        })
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
) -> Result<Chosen, Unfit> {
    let interface = candidate.interface;
    if !interface.up {
        return Err(Unfit::Down {
            interface: interface.name.clone(),
        });
    }
    if interface.mtu == 0 {
        return Err(Unfit::NoMtu {
            interface: interface.name.clone(),
        });
    }
    let own = |family: Family, fixed: Option<(IpAddr, Rule)>| match fixed {
        Some(fixed) => Ok(fixed),
        None => match interface.usable(family).first() {
            Some(ip) => Ok((*ip, Rule::Best)),
            None => Err(Unfit::NoAddress {
                family,
                interface: interface.name.clone(),
                addresses: interface
                    .addresses
                    .iter()
                    .filter(|address| Family::from(address.net) == family)
                    .copied()
                    .collect(),
            }),
        },
    };
    let v4 = if request.v4() {
        Some(own(Family::V4, candidate.v4)?)
    } else {
        None
    };
    let v6 = if request.v6() {
        Some(own(Family::V6, candidate.v6)?)
    } else {
        None
    };
    let ip4 = v4.as_ref().and_then(|(ip, _)| {
        if let IpAddr::V4(ip) = ip {
            Some(*ip)
        } else {
            None
        }
    });
    let ip6 = v6.as_ref().and_then(|(ip, _)| {
        if let IpAddr::V6(ip) = ip {
            Some(*ip)
        } else {
            None
        }
    });
    let addresses = Dual::from_options(ip4, ip6).ok_or(Unfit::NoFamily)?;
    let given = request.given_public();
    let public = given.map_or(addresses, |given| given.or(addresses));
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
        named: named || given.is_some(),
        by_default: candidate.by_default,
        given_public: request.public,
        warnings: candidate.warnings,
        rule_v4: v4.map_or(Rule::Best, |(_, rule)| rule),
        rule_v6: v6.map_or(Rule::Best, |(_, rule)| rule),
    })
}

/// Returns the interfaces that an operator can choose. Omits pods' interfaces, because pods' interfaces are numerous
/// and change often.
pub(super) fn host(facts: &HostFacts) -> Host {
    let usable = |interface: &Interface| {
        interface
            .addresses
            .iter()
            .filter(|address| address.usable())
            .map(Address::ip)
            .collect()
    };
    let shown = facts
        .interfaces
        .iter()
        .filter(|interface| facts.is_shown(interface));
    Host(
        shown
            .map(|interface| Choosable {
                name: interface.name.clone(),
                addresses: usable(interface),
                up: interface.up,
            })
            .collect(),
    )
}
