//! Follows the chosen interface while the daemon runs: by index, or by name if no interface has the index.

use super::choice::{Chosen, Rule};
use super::facts::HostFacts;
use backends::Underlay;
use ipnet::IpNet;
use netstate::host::{Interface, is_link_local};
use std::net::IpAddr;
use types::Addresses;
use types::Family;

/// Computes the current underlay from the chosen interface, the previous underlay and the facts about this host.
///
/// INVARIANT: the address families never change. The result keeps an address that the interface has lost, because the
/// loss may be temporary, for example while a network switch reboots. The published address follows the interface's
/// address, unless `--public-ip` sets the published address.
pub fn followed(chosen: &Chosen, last: &Underlay, facts: &HostFacts) -> Underlay {
    let mut now = last.clone();
    // While the chosen interface exists, another interface that now has its old name is ignored.
    let anew = || {
        facts
            .by_name(&last.name)
            .or_else(|| facts.by_name(&chosen.underlay.name))
    };
    let Some(interface) = facts.by_index(last.index).or_else(anew) else {
        now.local = facts.local(last.index);
        return now;
    };
    now.index = interface.index;
    now.name = interface.name.clone();
    if interface.mtu > 0 {
        now.mtu = interface.mtu;
    }
    now.addresses = addresses(chosen, last, interface, facts);
    let given = chosen.given_public.as_ref();
    now.public = now.addresses.map(
        |v4| given.and_then(|given| given.v4()).copied().unwrap_or(v4),
        |v6| given.and_then(|given| given.v6()).copied().unwrap_or(v6),
    );
    now.local = facts.local(now.index);
    now.links = links(last, &now.addresses, interface, facts);
    now
}

/// Returns the networks that the interface reaches without a gateway. Keeps a family's networks while the interface is
/// down or lacks the family's address. The kernel has then removed these networks' routes, but the other nodes still
/// exist.
fn links(
    last: &Underlay,
    addresses: &Addresses,
    interface: &Interface,
    facts: &HostFacts,
) -> Vec<IpNet> {
    let absent = |address: Option<IpAddr>| {
        address.is_some_and(|address| !interface.up || facts.owner(address).is_none())
    };
    let (v4, v6) = (
        absent(addresses.v4().copied().map(IpAddr::V4)),
        absent(addresses.v6().copied().map(IpAddr::V6)),
    );
    let mut links = facts.links(interface.index);
    let kept = last
        .links
        .iter()
        .filter(|net| if net.addr().is_ipv6() { v6 } else { v4 });
    links.extend(
        kept.copied()
            .filter(|net| !facts.links.contains(&(interface.index, *net)))
            .collect::<Vec<_>>(),
    );
    links
}

fn addresses(
    chosen: &Chosen,
    last: &Underlay,
    interface: &Interface,
    facts: &HostFacts,
) -> Addresses {
    let next = |current: IpAddr, rule: &Rule| -> IpAddr {
        let usable = interface.usable(Family::from(current));
        // The source address may belong to another interface (a router's lo).
        if usable.contains(&current) || !interface.owns(current) && facts.owner(current).is_some() {
            return current;
        }
        let new = match rule {
            Rule::Exactly => None,
            Rule::Best => usable.first().copied(),
            Rule::Matching(pattern) => usable
                .into_iter()
                .find(|ip| pattern.matches(&ip.to_string())),
            Rule::Inside(net) => usable.into_iter().find(|ip| net.contains(ip)),
        };
        // A link that comes back up first has only a link-local IPv6 address, which cannot replace a global one.
        new.filter(|new| !is_link_local(*new) || is_link_local(current))
            .unwrap_or(current)
    };
    last.addresses.map(
        |v4| match next(IpAddr::V4(v4), &chosen.rule_v4) {
            IpAddr::V4(new) => new,
            IpAddr::V6(_) => v4,
        },
        |v6| match next(IpAddr::V6(v6), &chosen.rule_v6) {
            IpAddr::V6(new) => new,
            IpAddr::V4(_) => v6,
        },
    )
}
