//! The judgement on each lease.

use super::refused::{Refused, Why};
use super::taken::{Identities, Nodes, UsedSubnets};
use super::terms::Terms;
use crate::json::excerpt;
use crate::lease::{Lease, Term};
use crate::table::LeaseTable;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Dual, Family, Subnets, nets_overlap};

/// Admits the leases of `raw`; an unusable value leaves that of `before` in force.
pub fn admitted(
    raw: &LeaseTable,
    before: &LeaseTable,
    terms: &Terms,
) -> (LeaseTable, Vec<Refused>) {
    let mut by_age: Vec<&Arc<Lease>> = raw
        .shared_leases()
        .filter(|lease| !terms.is_own(&lease.subnets))
        .collect();
    by_age.sort_by(|a, b| seniority(a, terms).cmp(&seniority(b, terms)));
    let mut used = UsedSubnets::default();
    let mut nodes = Nodes::default();
    let mut identities = Identities::of(terms);
    let mut refused = Vec::new();
    let mut kept = Vec::with_capacity(by_age.len());
    // Where the store assigns the subnets, a node's word about its address takes nobody's subnet away.
    let claimed = if terms.config.assigned {
        assigned(&by_age, terms)
    } else {
        UsedSubnets::default()
    };
    let nowhere = Nodes::default();
    let mut blank: BTreeSet<Subnets> = raw
        .unreadable()
        .iter()
        .filter_map(|subnets| trimmed(subnets, terms))
        .collect();
    for lease in by_age {
        let mut refuse = |half, why| {
            refused.push(Refused {
                subnets: lease.subnets,
                half,
                why,
            });
        };
        let in_a_subnet = lease
            .attrs
            .addresses()
            .find_map(|address| Some((address, claimed.holds(address)?)));
        let placed = match in_a_subnet {
            Some((address, net)) => Err(Why::InsideSubnet { address, net }),
            None => placed(
                lease,
                terms,
                &used,
                if terms.config.assigned {
                    &nowhere
                } else {
                    &nodes
                },
            ),
        };
        let subnets = match placed {
            Ok(subnets) => subnets,
            Err(why) => {
                refuse(None, why);
                continue;
            }
        };
        if let Err(why) = spoken_here(lease, &subnets, terms) {
            refuse(None, why);
            used.take(&subnets);
            nodes.take(lease);
            continue;
        }
        halves_left_out(lease, &subnets, terms)
            .into_iter()
            .for_each(|(half, why)| refuse(Some(half), why));
        let in_reach = on_link(lease, &subnets, terms).unwrap_or(subnets);
        let usable = match (terms.accepts)(lease) {
            Err(why) => Err(Why::Unusable(Box::new(why))),
            Ok(()) => identities
                .take(lease)
                .map_err(|used| used.why(lease, terms)),
        };
        let in_force = match usable {
            Ok(()) if in_reach == lease.subnets => Some(lease.clone()),
            Ok(()) => Some(Arc::new(Lease {
                subnets: in_reach,
                ..Lease::clone(lease)
            })),
            Err(why) => {
                refuse(None, why);
                let good = before
                    .shared_lease(&subnets)
                    .filter(|good| good.attrs != lease.attrs && of_one_node(good, lease, terms));
                good.filter(|good| identities.take(good).is_ok()).cloned()
            }
        };
        used.take(&subnets);
        nodes.take(in_force.as_ref().unwrap_or(lease));
        match in_force {
            Some(lease) => kept.push(lease),
            None => {
                blank.insert(subnets);
            }
        }
    }
    (LeaseTable::of(kept, blank), refused)
}

/// Which lease is the older. Nodes are created in whole seconds: within one, the first by name is, as everywhere else among Nodes.
fn seniority<'a>(lease: &'a Lease, terms: &Terms) -> (i64, Option<&'a str>, Subnets) {
    let name = lease
        .attrs
        .node
        .as_ref()
        .map(|node| &*node.id)
        .filter(|_| terms.config.assigned);
    (lease.since, name, lease.subnets)
}

/// Whether a value and the last good one are one node's: where the store assigns the subnets, the Node says whose they are.
fn of_one_node(good: &Lease, lease: &Lease, terms: &Terms) -> bool {
    let name = |lease: &Lease| lease.attrs.node.as_ref().map(|node| node.id.clone());
    !terms.config.assigned || name(good) == name(lease)
}

/// The subnets that a store has assigned: inside the network, to the oldest of those that claim them.
fn assigned(by_age: &[&Arc<Lease>], terms: &Terms) -> UsedSubnets {
    let own = terms.own.as_ref().map(|own| own.subnets);
    let mut claimed = UsedSubnets::default();
    for subnets in by_age
        .iter()
        .filter(|lease| terms.config.contains(&lease.subnets))
        .filter_map(|lease| trimmed(&lease.subnets, terms))
    {
        let in_the_way = own.is_some_and(|own| subnets.overlaps(&own))
            || terms
                .underlay
                .iter()
                .any(|net| subnets.nets().any(|subnet| nets_overlap(&subnet, net)))
            || claimed.taken(&subnets).is_some();
        if !in_the_way {
            claimed.take(&subnets);
        }
    }
    claimed
}

/// The subnets of a lease that can be in force beside the older ones; else why it is refused.
pub(super) fn placed(
    lease: &Lease,
    terms: &Terms,
    used: &UsedSubnets,
    nodes: &Nodes,
) -> Result<Subnets, Why> {
    let named = lease.subnets;
    let Some(subnets) = trimmed(&named, terms).filter(|_| terms.config.contains(&named)) else {
        return Err(Why::Outside(terms.config.networks));
    };
    let own = terms.own.as_ref().map(|own| own.subnets);
    if let Some(own) = own.filter(|own| subnets.overlaps(own)) {
        return Err(Why::OverlapsOurs(own));
    }
    if let Some(net) = terms
        .underlay
        .iter()
        .find(|net| subnets.nets().any(|subnet| nets_overlap(&subnet, net)))
    {
        return Err(Why::OverlapsUnderlay(*net));
    }
    for address in lease.attrs.addresses() {
        if terms.local.contains(&address) {
            return Err(Why::OurAddress {
                node: lease.attrs.node.as_ref().map(|node| node.name.to_string()),
                address,
            });
        }
        if no_host(address) {
            return Err(Why::NoHost(address));
        }
        // The route to such a node would lead into a tunnel, and back to this node.
        let around = subnets
            .nets()
            .chain(own.iter().flat_map(Subnets::nets))
            .find(|net| net.contains(&address))
            .or_else(|| used.holds(address));
        if let Some(net) = around {
            return Err(Why::InsideSubnet { address, net });
        }
    }
    if let Some(older) = used.taken(&subnets) {
        return Err(Why::OverlapsOlder(older));
    }
    if let Some((address, older)) = nodes.inside(&subnets) {
        return Err(Why::HoldsNode { address, older });
    }
    Ok(subnets)
}

/// Whether the holder of a lease uses the same backend and has an address of the subnet's family.
pub(super) fn spoken_here(lease: &Lease, subnets: &Subnets, terms: &Terms) -> Result<(), Why> {
    let ours = &terms.config.backend;
    if !speaks(ours, &lease.attrs.backend) {
        let attrs = &lease.attrs;
        if lease.term == Term::Reserved && attrs.node.is_none() && attrs.backend.is_empty() {
            return Err(Why::Reserved(attrs.public()));
        }
        return Err(Why::OtherBackend {
            at: attrs.public(),
            theirs: excerpt(&attrs.backend),
            ours: ours.clone(),
        });
    }
    if subnets
        .nets()
        .all(|net| lease.attrs.public_for(net.into()).is_none())
    {
        return Err(Why::NoAddress);
    }
    if on_link(lease, subnets, terms).is_none() {
        return Err(off_link(subnets, lease.attrs.public(), terms));
    }
    Ok(())
}

/// The halves whose node the backend can reach, as far as links tell.
fn on_link(lease: &Lease, subnets: &Subnets, terms: &Terms) -> Option<Subnets> {
    if terms.links.is_none() {
        return Some(*subnets);
    }
    let near = |family: Family| {
        lease
            .attrs
            .public_for(family)
            .is_some_and(|address| !terms.is_off_link(address))
    };
    Dual::from_options(
        subnets.v4().copied().filter(|_| near(Family::V4)),
        subnets.v6().copied().filter(|_| near(Family::V6)),
    )
}

/// Why these subnets of a lease are out of reach, with the links of their families.
fn off_link(subnets: &Subnets, at: Option<Addresses>, terms: &Terms) -> Why {
    let of_family = |link: &&IpNet| subnets.has(Family::from(**link));
    Why::OffLink {
        at,
        links: terms
            .links
            .iter()
            .flatten()
            .filter(of_family)
            .copied()
            .collect(),
        backend: terms.config.backend.clone(),
    }
}

/// Whether a lease with that BackendType is of that backend. Go flannel writes none for udp and alloc, which cannot be told apart.
fn speaks(backend: &str, written: &str) -> bool {
    match backend {
        "udp" | "alloc" => matches!(written, "" | "udp" | "alloc"),
        backend => backend == written,
    }
}

/// Of a dual-stack lease that can be used: the family that cannot.
pub(super) fn halves_left_out(
    lease: &Lease,
    subnets: &Subnets,
    terms: &Terms,
) -> Vec<(IpNet, Why)> {
    if !matches!(subnets, Dual::Both(..)) || (terms.accepts)(lease).is_err() {
        return Vec::new();
    }
    let left_out = |net: IpNet| {
        if lease.attrs.public_for(net.into()).is_none() {
            return Some((net, Why::NoAddress));
        }
        if let Some(address) = lease
            .attrs
            .public_for(net.into())
            .filter(|address| terms.is_off_link(*address))
        {
            return Some((
                net,
                off_link(&net.into(), Some(Addresses::from(address)), terms),
            ));
        }
        let half = Lease {
            subnets: net.into(),
            ..lease.clone()
        };
        (terms.accepts)(&half)
            .err()
            .map(|why| (net, Why::Unusable(Box::new(why))))
    };
    subnets.nets().filter_map(left_out).collect()
}

/// Whether no node can be reached at an address, wherever the network lies.
fn no_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    broadcast || address.is_multicast() || address.is_loopback()
}

/// The halves whose family this network has.
fn trimmed(subnets: &Subnets, terms: &Terms) -> Option<Subnets> {
    let networks = &terms.config.networks;
    Dual::from_options(
        subnets.v4().copied().filter(|_| networks.v4().is_some()),
        subnets.v6().copied().filter(|_| networks.v6().is_some()),
    )
}
