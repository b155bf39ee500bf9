//! The judgement on each lease.

use super::taken::{Identities, Nodes, UsedSubnets};
use super::terms::{Reason, Refused, Terms};
use crate::json::excerpt;
use crate::lease::{Lease, Term};
use crate::table::LeaseTable;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Dual, Family, Subnets, nets_overlap};

/// Admits the leases of `raw`; an unusable value leaves that of `before` in force.
pub fn admitted(raw: &LeaseTable, before: &LeaseTable, terms: &Terms) -> (LeaseTable, Vec<Refused>) {
    let mut by_age: Vec<&Arc<Lease>> = raw.shared_leases().filter(|lease| !terms.is_own(&lease.subnets)).collect();
    by_age.sort_by(|a, b| seniority(a, terms).cmp(&seniority(b, terms)));
    let mut used = UsedSubnets::default();
    let mut nodes = Nodes::default();
    let mut identities = Identities::of(terms);
    let mut refused = Vec::new();
    let mut kept = Vec::with_capacity(by_age.len());
    // Where the store assigns the subnets, a node's word about its address takes nobody's subnet away.
    let claimed = if terms.config.assigned { assigned(&by_age, terms) } else { UsedSubnets::default() };
    let nowhere = Nodes::default();
    let mut blank: BTreeSet<Subnets> = raw.unreadable().iter().filter_map(|subnets| trimmed(subnets, terms)).collect();
    for lease in by_age {
        let mut refuse = |reason, text: String| refused.push(Refused { subnets: lease.subnets, reason, text });
        let in_a_subnet = lease.attrs.addresses().find_map(|address| Some((address, claimed.holds(address)?)));
        let placed = match in_a_subnet {
            Some((address, net)) => Err((Reason::InsideSubnet, inside_subnet(lease, address, net))),
            None => placed(lease, terms, &used, if terms.config.assigned { &nowhere } else { &nodes }),
        };
        let subnets = match placed {
            Ok(subnets) => subnets,
            Err((reason, text)) => {
                refuse(reason, text);
                continue;
            }
        };
        if let Err((reason, text)) = spoken_here(lease, &subnets, terms) {
            refuse(reason, text);
            used.take(&subnets);
            nodes.take(lease);
            continue;
        }
        halves_left_out(lease, &subnets, terms).into_iter().for_each(|(reason, text)| refuse(reason, text));
        let in_reach = on_link(lease, &subnets, terms).unwrap_or(subnets);
        let usable = match (terms.accepts)(lease) {
            Err(why) => Err((Reason::Unusable, why.to_string())),
            Ok(()) => identities.take(lease).map_err(|used| used.reason(lease, terms)),
        };
        let in_force = match usable {
            Ok(()) if in_reach == lease.subnets => Some(lease.clone()),
            Ok(()) => Some(Arc::new(Lease { subnets: in_reach, ..Lease::clone(lease) })),
            Err((reason, why)) => {
                refuse(reason, format!("the value of {} cannot be used: {why}", lease.subnets));
                let good = before.shared_lease(&subnets).filter(|good| good.attrs != lease.attrs && of_one_node(good, lease, terms));
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
    let name = lease.attrs.node.as_ref().map(|node| node.id.as_str()).filter(|_| terms.config.assigned);
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
    for subnets in by_age.iter().filter(|lease| terms.config.contains(&lease.subnets)).filter_map(|lease| trimmed(&lease.subnets, terms)) {
        let in_the_way = own.is_some_and(|own| subnets.overlaps(&own))
            || terms.underlay.iter().any(|net| subnets.nets().any(|subnet| nets_overlap(&subnet, net)))
            || claimed.taken(&subnets).is_some();
        if !in_the_way {
            claimed.take(&subnets);
        }
    }
    claimed
}

/// The subnets of a lease that can be in force beside the older ones; else why it is refused.
pub(super) fn placed(lease: &Lease, terms: &Terms, used: &UsedSubnets, nodes: &Nodes) -> Result<Subnets, (Reason, String)> {
    let named = lease.subnets;
    let Some(subnets) = trimmed(&named, terms).filter(|_| terms.config.contains(&named)) else {
        return Err((Reason::Outside, format!("{named} is not a subnet of {}", terms.config.networks)));
    };
    let own = terms.own.as_ref().map(|own| own.subnets);
    if let Some(own) = own.filter(|own| subnets.overlaps(own)) {
        return Err((Reason::OverlapsOurs, format!("{named} overlaps this node's own {own}")));
    }
    if let Some(net) = terms.underlay.iter().find(|net| subnets.nets().any(|subnet| nets_overlap(&subnet, net))) {
        return Err((Reason::OverlapsUnderlay, format!("{named} overlaps {net}, the network of the underlay; {FREE_IT}")));
    }
    for address in lease.attrs.addresses() {
        if terms.local.contains(&address) {
            return Err((Reason::OurAddress, our_address(lease, address)));
        }
        if no_host(address) {
            return Err((Reason::NoHost, format!("{named} is published at {address}, which no node can have")));
        }
        // The route to such a node would lead into a tunnel, and back to this node.
        let around = subnets.nets().chain(own.iter().flat_map(Subnets::nets)).find(|net| net.contains(&address)).or_else(|| used.holds(address));
        if let Some(net) = around {
            return Err((Reason::InsideSubnet, inside_subnet(lease, address, net)));
        }
    }
    if let Some(older) = used.taken(&subnets) {
        return Err((Reason::OverlapsOlder, format!("{named} overlaps the older lease {older}")));
    }
    if let Some((address, older)) = nodes.inside(&subnets) {
        let text = format!("{named} contains {address}, the address of the node with the older lease {older}; {FREE_IT}");
        return Err((Reason::HoldsNode, text));
    }
    Ok(subnets)
}

/// Whether the holder of a lease uses the same backend and has an address of the subnet's family.
pub(super) fn spoken_here(lease: &Lease, subnets: &Subnets, terms: &Terms) -> Result<(), (Reason, String)> {
    let ours = &terms.config.backend;
    if !speaks(ours, &lease.attrs.backend) {
        let attrs = &lease.attrs;
        if lease.term == Term::Reserved && attrs.node.is_none() && attrs.backend.is_empty() {
            return Err((
                Reason::Reserved,
                format!("{} is reserved for the node at {}, which has not taken it yet", lease.subnets, attrs.public_text()),
            ));
        }
        let theirs = if lease.attrs.backend.is_empty() { "udp or alloc".to_owned() } else { excerpt(&lease.attrs.backend) };
        let text = format!(
            "{} of the node at {} uses backend {theirs}, this network uses {ours}: restart flanneld there, or set Backend.Type back, so that all \
             nodes use the same",
            lease.subnets,
            lease.attrs.public_text()
        );
        return Err((Reason::OtherBackend, text));
    }
    if subnets.nets().all(|net| lease.attrs.public_for(net.into()).is_none()) {
        return Err((Reason::NoAddress, format!("{} is published without an address of its family: its node cannot be reached", lease.subnets)));
    }
    if on_link(lease, subnets, terms).is_none() {
        return Err((Reason::OffLink, off_link(subnets, &lease.subnets.to_string(), &lease.attrs.public_text(), terms)));
    }
    Ok(())
}

/// The halves whose node the backend can reach, as far as links tell.
fn on_link(lease: &Lease, subnets: &Subnets, terms: &Terms) -> Option<Subnets> {
    if terms.links.is_none() {
        return Some(*subnets);
    }
    let near = |family: Family| lease.attrs.public_for(family).is_some_and(|address| !terms.is_off_link(address));
    Dual::from_options(subnets.v4().copied().filter(|_| near(Family::V4)), subnets.v6().copied().filter(|_| near(Family::V6)))
}

/// Why these subnets of a lease are out of reach, with the links of their families.
fn off_link(subnets: &Subnets, what: &str, address: &str, terms: &Terms) -> String {
    let of_family = |link: &&IpNet| subnets.nets().any(|net| net.addr().is_ipv6() == link.addr().is_ipv6());
    let links: Vec<String> = terms.links.iter().flatten().filter(of_family).map(ToString::to_string).collect();
    format!(
        "{what} is published at {address}, which is on no network of this node's underlay ({}): {} needs a direct link to each node. Connect the \
         nodes to one network, choose another interface with --iface on one of them, or use the vxlan backend",
        links.join(", "),
        terms.config.backend
    )
}

/// Whether a lease with that BackendType is of that backend. Go flannel writes none for udp and alloc, which cannot be told apart.
fn speaks(backend: &str, written: &str) -> bool {
    match backend {
        "udp" | "alloc" => matches!(written, "" | "udp" | "alloc"),
        backend => backend == written,
    }
}

/// Of a dual-stack lease that can be used: the family that cannot.
pub(super) fn halves_left_out(lease: &Lease, subnets: &Subnets, terms: &Terms) -> Vec<(Reason, String)> {
    if !matches!(subnets, Dual::Both(..)) || (terms.accepts)(lease).is_err() {
        return Vec::new();
    }
    let left_out = |net: IpNet| {
        if lease.attrs.public_for(net.into()).is_none() {
            return Some((Reason::NoAddress, format!("{net} of {} is published without an address of its family", lease.subnets)));
        }
        if let Some(address) = lease.attrs.public_for(net.into()).filter(|address| terms.is_off_link(*address)) {
            return Some((Reason::OffLink, off_link(&net.into(), &format!("{net} of {}", lease.subnets), &address.to_string(), terms)));
        }
        let half = Lease { subnets: net.into(), ..lease.clone() };
        (terms.accepts)(&half).err().map(|why| (Reason::Unusable, format!("{net} of {} cannot be used: {why}", lease.subnets)))
    };
    subnets.nets().filter_map(left_out).collect()
}

/// How to free a subnet that must not be leased; its holder takes another.
const FREE_IT: &str = "free it with `flannelctl release` and restart flanneld on its node, which then takes another";

fn inside_subnet(lease: &Lease, address: IpAddr, net: IpNet) -> String {
    format!(
        "{} is published at {address}, which lies in the leased subnet {net}: packets for that node would not leave this one. Give the node an \
         address outside the leased subnets (--iface or --public-ip there), or choose another Network",
        lease.subnets
    )
}

/// The Vagrant trap, as a third node sees it.
fn our_address(lease: &Lease, address: IpAddr) -> String {
    let name = lease.attrs.node.as_ref().map_or("another node", |node| node.name.as_str());
    format!(
        "{name} publishes {address} for {}, which is an address of this host too: packets for it would come back here. This happens where every \
         machine has the same address on its NAT interface (Vagrant's 10.0.2.15): start flanneld there with --iface naming the interface that \
         really connects the nodes",
        lease.subnets
    )
}

/// Whether no node can be reached at an address, wherever the network lies.
fn no_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    broadcast || address.is_multicast() || address.is_loopback()
}

/// The halves whose family this network has.
fn trimmed(subnets: &Subnets, terms: &Terms) -> Option<Subnets> {
    let networks = &terms.config.networks;
    Dual::from_options(subnets.v4().copied().filter(|_| networks.v4().is_some()), subnets.v6().copied().filter(|_| networks.v6().is_some()))
}
