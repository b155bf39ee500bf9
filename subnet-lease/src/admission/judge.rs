//! Decides for each lease of the store whether the node uses it.

use super::error::{AdmissionError, UnusedLeaseError};
use super::taken::{Identities, Nodes, UsedSubnets};
use super::terms::Terms;
use crate::json::excerpt;
use crate::lease::{Lease, Term};
use crate::table::LeaseTable;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use types::{Addresses, Dual, Family, Subnets, nets_overlap};

/// Decides which leases of `raw` the node uses. If a lease's value is unusable, the node keeps the value in `before`.
///
/// ```
/// use std::collections::BTreeSet;
/// use std::sync::Arc;
/// use subnet_lease::admission::{Terms, admitted};
/// use subnet_lease::{Lease, LeaseAttrs, LeaseTable, NetworkConfig, Term};
/// use types::Subnets;
///
/// let terms = Terms {
///     config: NetworkConfig::parse(r#"{"Network": "10.244.0.0/16"}"#)?,
///     own: None,
///     local: Vec::new(),
///     underlay: Vec::new(),
///     links: None,
///     rules: Arc::new(()),
///     history: Arc::default(),
/// };
/// let subnets = Subnets::V4("10.9.2.0/24".parse()?);
/// let lease = Lease { subnets, attrs: LeaseAttrs::default(), term: Term::Leased, since: 1 };
/// let raw = LeaseTable::of([lease], BTreeSet::new());
/// let (leases, refused) = admitted(&raw, &LeaseTable::default(), &terms);
/// assert!(leases.is_empty());
/// assert_eq!(refused[0].to_string(), "10.9.2.0/24 is not a subnet of 10.244.0.0/16");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn admitted(
    raw: &LeaseTable,
    before: &LeaseTable,
    terms: &Terms,
) -> (LeaseTable, Vec<AdmissionError>) {
    let mut by_age: Vec<&Arc<Lease>> =
        raw.shared_leases().filter(|lease| !terms.is_own(&lease.subnets)).collect();
    by_age.sort_by(|a, b| seniority(a, terms).cmp(&seniority(b, terms)));
    let mut judgement = Judgement {
        terms,
        before,
        // The address that a node publishes must not take another node's subnet away. Only where the store assigns no subnets and
        // nodes have addresses inside the pod network, the older lease counts.
        claimed: if terms.config.assigned || !overlaps_any(&terms.config.networks, &terms.underlay)
        {
            assigned(&by_age, terms)
        } else {
            UsedSubnets::default()
        },
        used: UsedSubnets::default(),
        nodes: Nodes::default(),
        usable: Vec::with_capacity(by_age.len()),
        replaced: Vec::new(),
        refused: Vec::new(),
    };
    for lease in by_age {
        judgement.judge(lease);
    }
    judgement.by_identity(raw)
}

/// State of the decision about all leases, from the oldest to the youngest.
struct Judgement<'a> {
    terms: &'a Terms,
    before: &'a LeaseTable,
    /// Leased subnets in which no node may have its address.
    claimed: UsedSubnets,
    /// Those of older leases, which younger leases must not overlap.
    used: UsedSubnets,
    nodes: Nodes,
    /// Leases that the backend can use if no other node has their identities.
    usable: Vec<(&'a Arc<Lease>, Subnets)>,
    /// Leases whose value the backend cannot use, with the last usable lease of the same node.
    replaced: Vec<(Subnets, Option<&'a Arc<Lease>>)>,
    refused: Vec<AdmissionError>,
}

impl<'a> Judgement<'a> {
    fn judge(&mut self, lease: &'a Arc<Lease>) {
        let subnets = match self.placed(lease) {
            Ok(subnets) => subnets,
            Err(why) => {
                self.refuse(lease, None, why);
                return;
            }
        };
        if let Err(why) = spoken_here(lease, &subnets, self.terms) {
            self.refuse(lease, None, why);
            self.occupy(&subnets, lease);
            return;
        }
        for (half, why) in halves_left_out(lease, &subnets, self.terms) {
            self.refuse(lease, Some(half), why);
        }
        match self.terms.rules.accepts(lease) {
            Ok(()) => {
                self.occupy(&subnets, lease);
                self.usable.push((lease, subnets));
            }
            Err(why) => {
                self.refuse(lease, None, UnusedLeaseError::Unusable(Box::new(why)));
                let good = self.last_good(lease, &subnets);
                self.occupy(&subnets, good.unwrap_or(lease));
                self.replaced.push((subnets, good));
            }
        }
    }

    fn refuse(&mut self, lease: &Lease, half: Option<IpNet>, why: UnusedLeaseError) {
        self.refused.push(AdmissionError { subnets: lease.subnets, half, why });
    }

    fn occupy(&mut self, subnets: &Subnets, lease: &Arc<Lease>) {
        self.used.take(subnets);
        self.nodes.take(lease);
    }

    fn placed(&self, lease: &Lease) -> Result<Subnets, UnusedLeaseError> {
        let in_a_subnet = lease
            .attrs
            .addresses()
            .find_map(|address| Some((address, self.claimed.holds(address)?)));
        if let Some((address, net)) = in_a_subnet {
            return Err(UnusedLeaseError::InsideSubnet { address, net });
        }
        if self.terms.config.assigned {
            placed(lease, self.terms, &self.used, &Nodes::default())
        } else {
            placed(lease, self.terms, &self.used, &self.nodes)
        }
    }

    fn last_good(&self, lease: &Lease, subnets: &Subnets) -> Option<&'a Arc<Lease>> {
        self.before
            .shared_lease(subnets)
            .filter(|good| good.attrs != lease.attrs && of_one_node(good, lease, self.terms))
    }

    /// Keeps the usable leases whose MACs or keys belong to no other node. Only values that the store has now have identities, because two nodes may
    /// swap theirs.
    fn by_identity(mut self, raw: &LeaseTable) -> (LeaseTable, Vec<AdmissionError>) {
        let mut identities = Identities::of(self.terms);
        for (lease, subnets) in &mut self.usable {
            *subnets = on_link(lease, subnets, self.terms).unwrap_or(*subnets);
        }
        identities.assign(&self.usable, self.before, self.terms);
        let mut kept = Vec::with_capacity(self.usable.len());
        // Subnets that the store contains but for which the node uses no lease.
        let mut blank: BTreeSet<Subnets> =
            raw.unreadable().iter().filter_map(|subnets| trimmed(subnets, self.terms)).collect();
        let mut barred = BTreeSet::new();
        for (lease, subnets) in std::mem::take(&mut self.usable) {
            let Err(used) = identities.check(lease) else {
                kept.push(if subnets == lease.subnets {
                    lease.clone()
                } else {
                    Arc::new(Lease { subnets, ..Lease::clone(lease) })
                });
                continue;
            };
            let why = used.why(lease, self.terms);
            self.refuse(lease, None, why);
            if used.is_former(lease, self.terms) {
                blank.insert(subnets);
                continue;
            }
            match self.last_good(lease, &subnets) {
                Some(good) if identities.check(good).is_ok() => kept.push(good.clone()),
                // A lease takes no route away from this host's own networks.
                _ if overlaps_any(&subnets, &self.terms.local) => {}
                _ => drop(barred.insert(subnets)),
            }
        }
        for (subnets, good) in std::mem::take(&mut self.replaced) {
            match good.filter(|good| identities.check(good).is_ok()) {
                Some(good) => kept.push(good.clone()),
                None => drop(blank.insert(subnets)),
            }
        }
        (LeaseTable::of(kept, blank).barring(barred), self.refused)
    }
}

/// Sorts leases by age. Nodes have creation times in whole seconds. Among Nodes of the same second, the first by name is the oldest.
fn seniority<'a>(lease: &'a Lease, terms: &Terms) -> (i64, Option<&'a str>, Subnets) {
    let name = lease.attrs.node.as_ref().map(|node| &*node.id).filter(|_| terms.config.assigned);
    (lease.since, name, lease.subnets)
}

/// Compares a lease with the last usable lease of the subnet. If the store assigns the subnets, both must name the same Node; otherwise equal subnets
/// are sufficient.
fn of_one_node(good: &Lease, lease: &Lease, terms: &Terms) -> bool {
    let name = |lease: &Lease| lease.attrs.node.as_ref().map(|node| node.id.clone());
    !terms.config.assigned || name(good) == name(lease)
}

/// The subnets inside the network that other nodes have. Of overlapping subnets, only that of the oldest lease counts.
fn assigned(by_age: &[&Arc<Lease>], terms: &Terms) -> UsedSubnets {
    let own = terms.own.as_ref().map(|own| own.subnets);
    let mut claimed = UsedSubnets::default();
    for subnets in by_age
        .iter()
        .filter(|lease| terms.config.contains(&lease.subnets))
        .filter_map(|lease| trimmed(&lease.subnets, terms))
    {
        let overlaps = own.is_some_and(|own| subnets.overlaps(&own))
            || terms
                .underlay
                .iter()
                .any(|net| subnets.nets().any(|subnet| nets_overlap(&subnet, net)))
            || claimed.taken(&subnets).is_some();
        if !overlaps {
            claimed.take(&subnets);
        }
    }
    claimed
}

/// The subnets of a lease that do not conflict with this node or older leases.
pub(super) fn placed(
    lease: &Lease,
    terms: &Terms,
    used: &UsedSubnets,
    nodes: &Nodes,
) -> Result<Subnets, UnusedLeaseError> {
    let named = lease.subnets;
    let Some(subnets) = trimmed(&named, terms).filter(|_| terms.config.contains(&named)) else {
        return Err(UnusedLeaseError::Outside(terms.config.networks));
    };
    let own = terms.own.as_ref().map(|own| own.subnets);
    if let Some(own) = own.filter(|own| subnets.overlaps(own)) {
        return Err(UnusedLeaseError::OverlapsOurs(own));
    }
    if let Some(net) =
        terms.underlay.iter().find(|net| subnets.nets().any(|subnet| nets_overlap(&subnet, net)))
    {
        return Err(UnusedLeaseError::OverlapsUnderlay(*net));
    }
    for address in lease.attrs.addresses() {
        if no_host(address, &terms.local) {
            return Err(UnusedLeaseError::NoHost(address));
        }
        if terms.local.iter().any(|net| net.addr() == address) {
            return Err(UnusedLeaseError::OurAddress {
                node: lease.attrs.node.as_ref().map(|node| node.name.to_string()),
                address,
            });
        }
        // The route to such a node would lead into a tunnel, and back to this node.
        let around = subnets
            .nets()
            .chain(own.iter().flat_map(Subnets::nets))
            .find(|net| net.contains(&address))
            .or_else(|| used.holds(address));
        if let Some(net) = around {
            return Err(UnusedLeaseError::InsideSubnet { address, net });
        }
    }
    if let Some(older) = used.taken(&subnets) {
        return Err(UnusedLeaseError::OverlapsOlder(older));
    }
    if let Some((address, older)) = nodes.inside(&subnets) {
        return Err(UnusedLeaseError::HoldsNode { address, older });
    }
    Ok(subnets)
}

/// Checks that the holder of a lease uses this network's backend, and that the backend can reach its public address.
pub(super) fn spoken_here(
    lease: &Lease,
    subnets: &Subnets,
    terms: &Terms,
) -> Result<(), UnusedLeaseError> {
    let ours = &terms.config.backend;
    if !speaks(ours, &lease.attrs.backend) {
        let attrs = &lease.attrs;
        if lease.term == Term::Reserved && attrs.node.is_none() && attrs.backend.is_empty() {
            return Err(UnusedLeaseError::Reserved(attrs.public()));
        }
        return Err(UnusedLeaseError::OtherBackend {
            at: attrs.public(),
            theirs: excerpt(&attrs.backend),
            ours: ours.clone(),
        });
    }
    if subnets.nets().all(|net| lease.attrs.public_for(net.into()).is_none()) {
        return Err(UnusedLeaseError::NoAddress);
    }
    if on_link(lease, subnets, terms).is_none() {
        return Err(off_link(subnets, lease.attrs.public(), terms));
    }
    Ok(())
}

/// Leaves out the address families in which the backend cannot reach the holder, according to `terms.links`.
fn on_link(lease: &Lease, subnets: &Subnets, terms: &Terms) -> Option<Subnets> {
    if terms.links.is_none() {
        return Some(*subnets);
    }
    let near = |family: Family| {
        lease.attrs.public_for(family).is_some_and(|address| !terms.is_off_link(address))
    };
    Dual::from_options(
        subnets.v4().copied().filter(|_| near(Family::V4)),
        subnets.v6().copied().filter(|_| near(Family::V6)),
    )
}

/// Names only this node's links of the subnets' address families.
fn off_link(subnets: &Subnets, at: Option<Addresses>, terms: &Terms) -> UnusedLeaseError {
    let of_family = |link: &&IpNet| subnets.has(Family::from(**link));
    UnusedLeaseError::OffLink {
        at,
        links: terms.links.iter().flatten().filter(of_family).copied().collect(),
        backend: terms.config.backend.clone(),
    }
}

/// Compares a backend with the BackendType in a lease. Go flannel writes none for udp and alloc, so a node cannot distinguish their leases.
fn speaks(backend: &str, written: &str) -> bool {
    match backend {
        "udp" | "alloc" => matches!(written, "" | "udp" | "alloc"),
        backend => backend == written,
    }
}

pub(super) fn halves_left_out(
    lease: &Lease,
    subnets: &Subnets,
    terms: &Terms,
) -> Vec<(IpNet, UnusedLeaseError)> {
    if !matches!(subnets, Dual::Both(..)) || terms.rules.accepts(lease).is_err() {
        return Vec::new();
    }
    let left_out = |net: IpNet| {
        if lease.attrs.public_for(net.into()).is_none() {
            return Some((net, UnusedLeaseError::NoAddress));
        }
        if let Some(address) =
            lease.attrs.public_for(net.into()).filter(|address| terms.is_off_link(*address))
        {
            return Some((net, off_link(&net.into(), Some(Addresses::from(address)), terms)));
        }
        let half = Lease { subnets: net.into(), ..lease.clone() };
        terms.rules.accepts(&half).err().map(|why| (net, UnusedLeaseError::Unusable(Box::new(why))))
    };
    subnets.nets().filter_map(left_out).collect()
}

fn overlaps_any(subnets: &Subnets, nets: &[IpNet]) -> bool {
    nets.iter().any(|net| subnets.nets().any(|subnet| nets_overlap(&subnet, &net.trunc())))
}

/// True for a broadcast, multicast, loopback or unspecified address. `local` are the addresses of this host.
fn no_host(address: IpAddr, local: &[IpNet]) -> bool {
    let broadcast = |v4: Ipv4Addr| {
        let ends = |net: &IpNet| match net {
            // A network of two addresses has no broadcast address.
            IpNet::V4(net) => net.prefix_len() < 31 && net.broadcast() == v4,
            IpNet::V6(_) => false,
        };
        v4.is_broadcast() || local.iter().any(ends)
    };
    matches!(address, IpAddr::V4(v4) if broadcast(v4))
        || address.is_multicast()
        || address.is_loopback()
        || address.is_unspecified()
}

/// Leaves out the subnets of an address family that this network does not use.
fn trimmed(subnets: &Subnets, terms: &Terms) -> Option<Subnets> {
    let networks = &terms.config.networks;
    Dual::from_options(
        subnets.v4().copied().filter(|_| networks.v4().is_some()),
        subnets.v6().copied().filter(|_| networks.v6().is_some()),
    )
}
