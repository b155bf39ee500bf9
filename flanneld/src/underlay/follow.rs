//! Follows the chosen interface while the daemon runs: by index, or by name if no interface has the index.

use super::choice::{Chosen, Rule};
use super::facts::HostFacts;
use backends::Underlay;
use ipnet::IpNet;
use netstate::host::{Interface, is_link_local, is_single};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;
use types::{Addresses, Family};

/// Computes the current underlay from the chosen interface, the previous underlay and the facts about this host.
///
/// INVARIANT: the address families never change. The result keeps an address that the interface has lost, because the
/// loss may be temporary, for example while a network switch reboots. The published address follows the interface's
/// address, unless `--public-ip` sets it.
pub fn followed(chosen: &Chosen, last: &Underlay, facts: &HostFacts) -> Underlay {
    let mut now = last.clone();
    // While the chosen interface exists, another interface that now has its old name is ignored.
    let anew = || {
        facts
            .by_name(&last.name)
            .or_else(|| facts.by_name(&chosen.underlay.name))
            .filter(|interface| !facts.serves_pods(interface))
    };
    let Some(interface) = facts.by_index(last.index).or_else(anew) else {
        now.local = facts.local(last.index);
        return now;
    };
    now.index = interface.index;
    now.name = interface.name.clone();
    // The MTU of the loopback interface says nothing about packets to other hosts.
    if interface.mtu > 0 && !interface.loopback {
        now.mtu = interface.mtu;
    }
    now.addresses = addresses(chosen, last, interface, facts);
    let given = chosen.given_public;
    now.public = given.map_or(now.addresses, |given| given.or(now.addresses));
    now.local = facts.local(now.index);
    now.links = links(last, &now.addresses, interface, facts);
    now
}

/// Time for which other addresses must last before the node publishes them. A cable that is pulled or a network
/// manager that restarts takes an address away for seconds.
const STEADY: Duration = Duration::from_secs(5);

/// Delays a change of the underlay's addresses by [`STEADY`].
#[derive(Debug, Default)]
pub(super) struct Steady(Option<(Addresses, Instant)>);

impl Steady {
    /// The underlay with the addresses that are in force at `now`, and when the change to those of `next` is due, if
    /// they change.
    pub(super) fn look(
        &mut self,
        last: &Underlay,
        next: Underlay,
        now: Instant,
    ) -> (Underlay, Option<Instant>) {
        let since = match self.0 {
            Some((addresses, since)) if addresses == next.addresses => since,
            _ => now,
        };
        if next.addresses == last.addresses || now >= since + STEADY {
            self.0 = None;
            return (next, None);
        }
        self.0 = Some((next.addresses, since));
        let kept = Underlay {
            addresses: last.addresses,
            public: last.public,
            links: last.links.clone(),
            ..next
        };
        (kept, Some(since + STEADY))
    }
}

/// The networks that the interface reaches without a gateway. Keeps a family's networks while the interface is down
/// or lacks the family's address. The kernel has then removed their routes, but the other nodes still exist.
fn links(
    last: &Underlay,
    addresses: &Addresses,
    interface: &Interface,
    facts: &HostFacts,
) -> Vec<IpNet> {
    let absent = |family: Family| {
        let address = addresses.of(family);
        address.is_some_and(|address| !interface.up || facts.owner(address).is_none())
    };
    let mut links = facts.links(interface.index);
    let kept = last.links.iter().filter(|net| absent(Family::from(**net)));
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
    let next = |(own, rule): &(IpAddr, Rule)| -> Option<IpAddr> {
        let current = last.addresses.of(Family::from(*own))?;
        let mut usable = facts.eligible(interface, Family::from(current));
        // A virtual address that was the only one at the start is not the node's own.
        let is_real = *rule == Rule::Exactly || !interface.is_virtual(*own);
        // The node's own address takes precedence once it is back.
        if usable.contains(own) && is_real {
            return Some(*own);
        }
        // An address of a single host may be virtual, and move to another node (keepalived, kube-vip).
        let mut local = chosen.underlay.local.iter();
        if local.any(|net| net.addr() == *own && !is_single(net)) {
            usable.retain(|ip| !interface.has_single(*ip));
        }
        // The source address may belong to another interface (a router's lo).
        if usable.contains(&current) && !interface.is_virtual(current)
            || !interface.owns(current) && facts.owner(current).is_some()
        {
            return Some(current);
        }
        let new = usable.into_iter().find(|ip| match rule {
            Rule::Exactly => false,
            Rule::Best => true,
            Rule::Matching(pattern) => pattern.matches(&ip.to_string()),
            Rule::Inside(net) => net.contains(ip),
        });
        // A link that comes back up first has only a link-local IPv6 address, which cannot replace a global one.
        let new = new.filter(|new| !is_link_local(*new) || is_link_local(current));
        Some(new.unwrap_or(current))
    };
    let now = chosen.rules.iter().filter_map(next).map(Addresses::from);
    now.reduce(Addresses::or).unwrap_or(last.addresses)
}
