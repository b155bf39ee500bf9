//! Chooses the interface if the store lists the nodes (Kubernetes) and no flag names an interface. flanneld prefers
//! the address that this node published last. Otherwise, it chooses the first interface that is not behind a
//! machine's own NAT and whose addresses no other node claims.

#[cfg(test)]
mod tests;

use super::candidate::{Candidate, default_route, finish, host, in_brackets};
use super::choice::{Chosen, Rule};
use super::error::SHARED;
use super::facts::HostFacts;
use super::request::{KnownAddresses, Request};
use crate::error::joined;
use backends::Underlay;
use ipnet::IpNet;
use netstate::host::{Interface, machine_nat};
use std::collections::BTreeMap;
use std::net::IpAddr;
use subnet_lease::manager::Claimant;
use types::{Family, Problem};

/// Why other nodes may not reach this node through an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressConcern {
    /// Whether the interface is probably behind the NAT that VirtualBox and QEMU give to each machine.
    pub is_nat: bool,
    /// The interface's addresses that other nodes claim.
    pub claimed: BTreeMap<IpAddr, Claimant>,
    /// Whether this node stopped using an address of the interface a short time ago.
    pub was_left: bool,
}

impl AddressConcern {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// True if flanneld may use the interface without a better one.
    fn is_bearable(&self) -> bool {
        !self.was_left
            && !self.claimed.values().any(|claimant| claimant.publishes)
            && (!self.is_nat || self.claimed.is_empty())
    }

    /// The claimed addresses, each with the name of a node that claims it.
    fn shared(&self) -> impl Iterator<Item = (IpAddr, String)> {
        self.claimed.iter().map(|(ip, claimant)| (*ip, claimant.node.clone()))
    }
}

/// True if the choice may depend on the addresses of the store's servers, because an interface of this host may be in
/// doubt.
pub fn needs_servers(known: &KnownAddresses, facts: &HostFacts) -> bool {
    let in_doubt = |interface: &Interface| {
        nat_network(interface, facts).is_some()
            || interface.addresses.iter().any(|address| known.taken.contains_key(&address.ip()))
    };
    !known.overwritten && (!known.left.is_empty() || facts.interfaces.iter().any(in_doubt))
}

pub fn doubt(underlay: &Underlay, known: &KnownAddresses, facts: &HostFacts) -> AddressConcern {
    let addresses = || underlay.addresses.ips();
    AddressConcern {
        is_nat: facts.by_index(underlay.index).is_some_and(|interface| is_nat(interface, facts)),
        claimed: addresses()
            .filter(|ip| !facts.unshared.contains(ip))
            .filter_map(|ip| Some((ip, known.taken.get(&ip)?.clone())))
            .collect(),
        was_left: addresses().any(|ip| known.left.contains(&ip)),
    }
}

/// The interface's network whose router is the NAT of VirtualBox or QEMU, if any.
pub(super) fn nat_network(interface: &Interface, facts: &HostFacts) -> Option<IpNet> {
    let leads_there = |router: IpAddr| {
        facts
            .defaults
            .iter()
            .any(|route| route.index == interface.index && route.via == Some(router))
    };
    interface.nets().find(|net| machine_nat(net).is_some_and(leads_there))
}

/// True if the NAT is the router, and no other host on the link replies to ARP.
fn is_nat(interface: &Interface, facts: &HostFacts) -> bool {
    nat_network(interface, facts).is_some_and(|net| {
        !facts.answering.iter().any(|(index, ip)| *index == interface.index && net.contains(ip))
    })
}

/// Prefers the interface with the address that this node published last. The second choice is an interface that is
/// not in doubt; the third is a doubtful one that flanneld may still use.
pub(super) fn choose(
    known: &KnownAddresses,
    request: &Request,
    facts: &HostFacts,
) -> Result<Chosen, Problem> {
    let mut search = Search { known, request, facts, passed_over: Vec::new(), whys: Vec::new() };
    if let Some(chosen) = search.published().or_else(|| search.undoubted()) {
        return Ok(chosen);
    }
    let shared: BTreeMap<IpAddr, String> =
        search.passed_over.iter().flat_map(|(_, doubt)| doubt.shared()).collect();
    if let Some((mut chosen, doubt)) =
        search.passed_over.into_iter().find(|(_, doubt)| doubt.is_bearable())
    {
        chosen.warnings.push(in_doubt(&chosen, &doubt));
        return Ok(chosen);
    }
    let parts = search.whys;
    let problem = if shared.is_empty() {
        Problem::new("no-candidate-interface", joined(&parts, "; "))
    } else {
        let text = format!(
            "other Nodes also have the addresses of this host: {}. For example, every Vagrant machine has the address 10.0.2.15 on its NAT interface. Use --iface or --iface-cidr in the arguments of the DaemonSet to name the interface that connects the nodes. Alternatively, set the annotation node-public-ip of this Node or kubelet's --node-ip, or delete the Node that is gone; this host has {}{}",
            joined_holders(shared),
            host(facts),
            in_brackets(&parts, "; ")
        );
        Problem::new(SHARED, text)
    };
    Err(Problem { parts, ..problem })
}

fn joined_holders(shared: impl IntoIterator<Item = (IpAddr, String)>) -> String {
    joined(shared.into_iter().map(|(ip, node)| format!("{ip} (Node {node})")), ", ")
}

/// A search for an interface that is not in doubt, with the candidates that it skipped.
struct Search<'a> {
    known: &'a KnownAddresses,
    request: &'a Request,
    facts: &'a HostFacts,
    passed_over: Vec<(Chosen, AddressConcern)>,
    /// Why flanneld cannot use some candidates.
    whys: Vec<Problem>,
}

impl<'a> Search<'a> {
    /// The interface with an address that this node published last, if this host still has it. A restart thus keeps
    /// the previous choice, even if other nodes claim the address.
    fn published(&mut self) -> Option<Chosen> {
        if self.known.overwritten {
            // The operator chose the published address, not the node.
            return None;
        }
        // A virtual address may have replaced the node's own address while that was absent.
        let is_virtual = |ip: IpAddr| {
            let owner = self.facts.owner(ip);
            owner.is_some_and(|owner| {
                let mut own = self.known.internal.iter();
                owner.has_single(ip)
                    && own.any(|own| {
                        own.is_ipv4() == ip.is_ipv4() && owner.owns(*own) && !owner.has_single(*own)
                    })
            })
        };
        let mut published = self.known.published.clone();
        published.retain(|ip| !is_virtual(*ip));
        for candidate in
            owned(&published, "which this node published last", self.request, self.facts)
        {
            match finish(self.request, self.facts, candidate, false) {
                Ok(chosen) if !doubt(&chosen.underlay, self.known, self.facts).was_left => {
                    return Some(chosen);
                }
                Ok(_) => {}
                Err(why) => self.whys.push(why),
            }
        }
        None
    }

    /// The first candidate that is not in doubt.
    fn undoubted(&mut self) -> Option<Chosen> {
        for candidate in
            owned(&self.known.internal, "the Node's InternalIP", self.request, self.facts)
        {
            if let Some(chosen) = self.consider(Ok(candidate)) {
                return Some(chosen);
            }
        }
        if let Some(chosen) = self.consider(default_route(self.request, self.facts)) {
            return Some(chosen);
        }
        for candidate in leading(self.known, self.request, self.facts, &mut self.whys) {
            if let Some(chosen) = self.consider(Ok(candidate)) {
                return Some(chosen);
            }
        }
        let seen: Vec<u32> =
            self.passed_over.iter().map(|(chosen, _)| chosen.underlay.index).collect();
        let is_other = |interface: &&Interface| {
            self.facts.joins_hosts(interface) && !seen.contains(&interface.index)
        };
        let mut others = self.facts.interfaces.iter().filter(is_other);
        match (others.next(), others.next()) {
            (Some(interface), None) => self.consider(Ok(Candidate::new(
                interface,
                "the only other interface that connects hosts",
            ))),
            _ => None,
        }
    }

    /// `Some` if the candidate is usable and not in doubt. Records any other.
    fn consider(&mut self, candidate: Result<Candidate<'a>, Problem>) -> Option<Chosen> {
        match candidate.and_then(|candidate| finish(self.request, self.facts, candidate, false)) {
            Err(why) => self.whys.push(why),
            Ok(chosen) => {
                let doubt = doubt(&chosen.underlay, self.known, self.facts);
                if doubt.is_none() || self.known.overwritten {
                    return Some(chosen);
                }
                if doubt.was_left {
                    let Underlay { addresses, name, .. } = &chosen.underlay;
                    let text = format!(
                        "this node stopped using {addresses} of {name} less than ten minutes ago, because no peer responded"
                    );
                    self.whys.push(Problem::new("interface-given-up", text));
                }
                self.passed_over.push((chosen, doubt));
            }
        }
        None
    }
}

/// A candidate for each of the addresses that this host has. If `addresses` contains an address of the other family
/// on the same interface, the candidate includes both.
fn owned<'a>(
    addresses: &[IpAddr],
    whose: &str,
    request: &Request,
    facts: &'a HostFacts,
) -> Vec<Candidate<'a>> {
    let wanted = addresses.iter().filter(|ip| request.uses(Family::from(**ip)));
    let here: Vec<(&Interface, IpAddr)> = wanted
        .filter_map(|ip| Some((facts.owner(*ip).filter(|owner| !owner.loopback)?, *ip)))
        .collect();
    let with_other = |(interface, ip): &(&'a Interface, IpAddr)| {
        let candidate =
            Candidate::new(interface, format!("it has {ip}, {whose}")).at(*ip, Rule::Best);
        let other = here.iter().find(|(other, second)| {
            other.index == interface.index && second.is_ipv6() != ip.is_ipv6()
        });
        other
            .into_iter()
            .fold(candidate, |candidate, (_, second)| candidate.at(*second, Rule::Best))
    };
    here.iter().map(with_other).collect()
}

/// The interfaces that lead to the store's servers, and then those that lead to other nodes.
fn leading<'a>(
    known: &KnownAddresses,
    request: &Request,
    facts: &'a HostFacts,
    whys: &mut Vec<Problem>,
) -> Vec<Candidate<'a>> {
    let servers = known.servers.iter().map(|ip| (*ip, "the API server"));
    let mut candidates = Vec::new();
    for (target, peer) in servers.chain(known.others().map(|ip| (ip, "another node"))) {
        match facts.towards(target) {
            Ok((interface, source)) if !interface.loopback && !interface.owns(target) => {
                let why = format!("the interface that reaches {peer} at {target}");
                let source = source.filter(|source| request.uses(Family::from(*source)));
                candidates.push(Candidate::new(interface, why).from(source));
            }
            Ok(_) => {}
            Err(why) => {
                let text = format!("no route to {peer} at {target}: {why}");
                let problem = Problem::new("interface-peer-unreachable", text);
                whys.push(Problem { parts: vec![why], ..problem });
            }
        }
    }
    candidates
}

/// The warning that flanneld chose a doubtful interface.
fn in_doubt(chosen: &Chosen, doubt: &AddressConcern) -> String {
    let (name, addresses) = (&chosen.underlay.name, &chosen.underlay.addresses);
    let why = if doubt.is_nat {
        "its router is the NAT that VirtualBox, QEMU and lima give to each machine separately"
            .to_owned()
    } else {
        format!("other Nodes claim its address: {}", joined_holders(doubt.shared()))
    };
    format!(
        "packets between nodes use {name} ({addresses}) although {why}; this host has no better interface. If peers do not respond, use --iface, --iface-cidr, or the annotation node-public-ip of this Node to name the interface that connects the nodes"
    )
}
